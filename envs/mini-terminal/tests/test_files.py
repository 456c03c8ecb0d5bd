"""Files, beside the shell and in its folder."""

import os

import pytest
from mini_terminal import execute_command, list_files, read_file, write_file


def test_relative_paths_start_where_the_main_shell_is(play, tmp_path):
    async def work():
        await execute_command("mkdir -p sub; cd sub")
        write_file("new/a.txt", "tea\n")
        return (await execute_command("cat new/a.txt"))["output"][0], read_file("new/a.txt")

    assert play(work) == ("tea\n", {"content": "tea\n", "size": 4, "next_offset": None})
    assert (tmp_path / "sub/new/a.txt").read_text() == "tea\n"


def test_a_long_file_is_read_in_parts_and_no_character_is_cut(tmp_path):
    text = "ünï🎉" * 100
    write_file("f", text)
    parts, offset = [], 0
    while offset is not None:
        part = read_file("f", offset, 7)
        parts.append(part["content"])
        offset = part["next_offset"]
    assert "".join(parts) == text


def test_what_is_not_text_goes_as_base64():
    write_file("b", "AP8K", encoding="base64")
    assert read_file("b", encoding="base64")["content"] == "AP8K"
    with pytest.raises(ValueError, match="with encoding base64"):
        read_file("b")


def test_writing_replaces_or_appends():
    write_file("f", "one")
    assert write_file("f", "two", append=True)["size"] == 6
    write_file("f", "3")
    assert read_file("f")["content"] == "3"


def test_a_folder_is_listed(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "f").write_text("12")
    os.symlink("f", tmp_path / "l")
    listed = list_files(".")
    assert listed["path"] == str(tmp_path)
    assert [(e["name"], e["type"]) for e in listed["entries"]] == [("d", "folder"), ("f", "file"), ("l", "link")]
    assert listed["entries"][1]["size"] == 2
    assert listed["entries"][2]["target"] == "f"


def test_what_is_not_there_is_said():
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_file("nowhere")
