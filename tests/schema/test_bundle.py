"""Validation of bundle manifests, which are untrusted input."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aenv.schema import bundle
from aenv.schema.bundle import BLOB_LIMIT, Bundle, BundleFile, digest_of

BLOB = digest_of(b"x")


def manifest(**changes):
    whole = {
        "format": 1,
        "name": "hello",
        "version": "1.0.0",
        "files": [],
        "links": [],
        "config": {"name": "hello", "version": "1.0.0"},
    }
    return json.dumps(whole | changes)


def file(path, size=1, mode=0o644, blobs=None):
    return {
        "path": path,
        "mode": mode,
        "size": size,
        "blobs": [BLOB] * -(-size // BLOB_LIMIT) if blobs is None else blobs,
    }


def refused(**changes):
    with pytest.raises(ValueError, match="the manifest is not valid") as caught:
        bundle.parse(manifest(**changes))
    return str(caught.value)


def test_the_digest_does_not_depend_on_the_order_of_keys_or_on_spaces():
    one = bundle.parse(manifest(config={"name": "hello", "version": "1.0.0", "tags": ["a"]}))
    other = bundle.parse(
        json.dumps(json.loads(manifest(config={"tags": ["a"], "version": "1.0.0", "name": "hello"})), indent=4)
    )
    assert one.digest() == other.digest()
    assert list(other.config) == ["tags", "version", "name"]


def test_the_digest_covers_modes_links_and_config():
    def digest(**changes):
        return bundle.parse(manifest(**changes)).digest()

    digests = {
        digest(),
        digest(files=[file("a")]),
        digest(files=[file("a", mode=0o755)]),
        digest(links=[{"path": "a", "target": "b"}]),
        digest(config={"name": "hello", "version": "1.0.0", "x": 1}),
    }
    assert len(digests) == 5


@pytest.mark.parametrize(
    "path",
    ["../x", "/etc/passwd", "a/../../x", "a//b", "./a", "a/.", "", "a\0b", "a\nb", "..", "c:/x", "a\\..\\x", "a" * 256,
     "/".join("a" * 65), ".git/hooks/post-checkout", "sub/.GIT/config", "\ud800"],
)  # fmt: skip
def test_a_path_that_could_leave_the_folder_is_refused(path):
    refused(files=[file(path)])
    refused(links=[{"path": path, "target": "x"}])


@pytest.mark.parametrize(
    ("path", "target"),
    [("a", "/etc"), ("a", ".."), ("a", "../x"), ("d/a", "../../x"), ("a", "b/../../x"), ("a", "b/.."), ("a", ""),
     ("a", "b\0"), ("d/a", "./../.."), ("a", "//x"), ("a", "c:\\x")],
)  # fmt: skip
def test_a_link_that_could_leave_the_folder_is_refused(path, target):
    assert "link" in refused(links=[{"path": path, "target": target}])


@pytest.mark.parametrize(
    ("path", "target"), [("a", "b"), ("d/a", "../b/c"), ("d/e/a", "../.."), ("a", "."), ("d/a", "..")]
)
def test_a_link_inside_of_the_project_is_accepted(path, target):
    found = bundle.parse(manifest(links=[{"path": path, "target": target}]))
    assert found.links[0].target == target


@pytest.mark.parametrize(
    ("files", "why"),
    [
        (["a", "a"], "twice"),
        (["A", "a"], "case"),
        (["b", "a"], "order"),
        (["D/x", "d/y"], "case"),
        (["a", "a/b"], "inside"),
        (["caf\u00e9", "cafe\u0301"], "order"),
        (["cafe\u0301", "caf\u00e9"], "case"),
        (["config.json"], "twice"),
        (["CONFIG.json"], "case"),
    ],
)
def test_paths_that_some_file_systems_merge_are_refused(files, why):
    assert why in refused(files=[file(path) for path in files])


def test_an_entry_below_a_link_is_refused():
    message = refused(files=[file("a/passwd")], links=[{"path": "a", "target": "b"}])
    assert "inside of it" in message


def test_blobs_must_match_the_declared_sizes():
    assert "blobs" in refused(files=[file("a", size=BLOB_LIMIT + 1, blobs=[BLOB])])
    assert "blobs" in refused(files=[file("a", size=0, blobs=[BLOB])])
    assert "bytes and" in refused(files=[file("a", size=1), file("b", size=2)])
    assert "files.0.blobs.0" in refused(files=[file("a", blobs=["sha256:xyz"])])


def test_a_manifest_beyond_a_limit_is_refused():
    assert "at most" in refused(
        files=[file(f"{n:06}") for n in range(bundle.ENTRY_LIMIT)], links=[{"path": "z", "target": "y"}]
    )
    assert "50000" in refused(files=[file(f"{n:06}") for n in range(bundle.ENTRY_LIMIT + 1)])
    assert "less than or equal" in refused(files=[file("a", size=bundle.SIZE_LIMIT + 1, blobs=[])])
    assert "config.json is larger" in refused(
        config={"name": "hello", "version": "1.0.0", "x": "y" * bundle.CONFIG_LIMIT}
    )
    with pytest.raises(ValueError, match="manifest is larger"):
        bundle.parse(b" " * (bundle.MANIFEST_LIMIT + 1))


@pytest.mark.parametrize(
    "changes",
    [{"extra": 1}, {"format": 2}, {"name": "Bad_Name"}, {"version": "../1"}, {"config": {}},
     {"files": [file("a") | {"x": 1}]},
     {"files": [file("a") | {"mode": 0o4755}]}, {"files": [file("a", size=-1, blobs=[])]}, {"config": None}],
)  # fmt: skip
def test_a_manifest_with_unknown_or_invalid_fields_is_refused(changes):
    refused(**changes)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "null", '{"name": NaN}'])
def test_text_that_is_not_a_manifest_is_refused(text):
    with pytest.raises(ValueError, match="manifest"):
        bundle.parse(text)


def test_all_blobs_of_a_file_but_the_last_have_the_full_size():
    whole = BundleFile(path="a", size=BLOB_LIMIT * 2 + 5, blobs=[digest_of(bytes([n])) for n in range(3)])
    assert [size for _, size in whole.parts()] == [BLOB_LIMIT, BLOB_LIMIT, 5]


def test_differences_lists_config_keys_and_paths():
    old = bundle.parse(manifest(files=[file("a"), file("b")]))
    new = bundle.parse(
        manifest(files=[file("a", mode=0o755), file("c")], config={"name": "hello", "version": "1.0.0", "tags": []})
    )
    assert bundle.differences(old, new) == ["config.json: tags", "added c", "removed b", "changed a"]
    assert bundle.differences(old, old) == []


@given(st.text(max_size=30), st.text(alphabet="./ab", max_size=12))
def test_any_accepted_path_and_link_stay_inside_the_folder(path, target):
    """Join paths to a folder as an unpacker does; accepted ones must not leave it."""
    import posixpath

    try:
        found = Bundle(
            name="a", version="1", config={"name": "a", "version": "1"}, links=[{"path": path, "target": target}]
        )
    except ValueError:
        return
    link = found.links[0]
    end = posixpath.normpath(posixpath.join("/root/x", posixpath.dirname(link.path), link.target))
    assert end == "/root/x" or end.startswith("/root/x/")
    assert posixpath.normpath(f"/root/x/{link.path}") == f"/root/x/{link.path}"
