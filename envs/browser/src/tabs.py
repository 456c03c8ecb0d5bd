"""One episode's browser context: its tabs, what they said and asked, its downloads and its dialogs.

Helper code runs in an isolated world of the page: it sees the document but none of the page's own JavaScript, so a page
cannot replace what it calls. No tool runs code that an agent writes.
"""

import contextlib
import secrets
import shutil
import threading
import time
from collections import deque
from typing import Any
from urllib.parse import urlsplit

from cdp import BrowserEnded, Chromium, CommandFailed

SCHEMES = ("http", "https")
KEPT = 500
"""Console entries and requests that are kept for a tab until they are read."""
MOST_TABS = 20
MOST_DOWNLOAD = 32 << 20
MOST_DOWNLOADS = 50
LOAD_SECONDS = 15.0
SETTLE_SECONDS = 5.0
_WORLD = "aenv"
_QUIET = "new Promise(done => requestAnimationFrame(() => setTimeout(() => done(document.readyState), 0)))"


class NotPossible(ValueError):
    """What an agent asked for cannot be done; the message says why and what to do instead."""


class Tab:
    """A page."""

    def __init__(self, name: str, target: str, session: str) -> None:
        self.name, self.target, self.session = name, target, session
        self.console: deque[str] = deque(maxlen=KEPT)
        self.network: deque[str] = deque(maxlen=KEPT)
        self.requests: dict[str, tuple[str, str, float]] = {}
        self.loading: set[str] = set()
        self.asked = False
        """Whether a navigation was requested that has not begun to load."""
        self.frame = target
        self.url = "about:blank"
        self.refs: dict[int, str] = {}
        self.nodes: dict[str, int] = {}
        self.frames: dict[int, str] = {}
        """The frame of each element that has a reference."""
        self.drag: dict[str, Any] | None = None
        self.bound: list[tuple[int, str]] = []
        self.crashed = False
        self.mouse = (0.0, 0.0)


class Context:
    """The tabs of an episode. Nothing of it outlives `close`: cookies, storage, caches, downloads."""

    def __init__(self, browser: Chromium, size: tuple[int, int]) -> None:
        self.browser, self.size = browser, size
        folder = browser.folder / f"episode-{secrets.token_hex(4)}"
        self.files, self._incoming = folder / "files", folder / "downloads"
        """What may be uploaded: files of the task and downloads."""
        self._changed = threading.Condition()
        self.tabs: dict[str, Tab] = {}
        self.active = ""
        self._sessions: dict[str, Tab] = {}
        self._count = 0
        self._references = 0
        self._opening = 0
        """Tabs that pages have asked for and that are not there yet."""
        self.notes: list[str] = []
        self.dialogs: tuple[bool, str] = (False, "")
        self._downloads: dict[str, dict[str, Any]] = {}
        self.scripts: list[str] = []
        self.bindings: list[str] = []
        self.files.mkdir(parents=True)
        self.id = str(browser.call("Target.createBrowserContext", {"disposeOnDetach": True})["browserContextId"])
        where = {"behavior": "allowAndName", "downloadPath": str(self._incoming), "eventsEnabled": True}
        browser.call("Browser.setDownloadBehavior", {**where, "browserContextId": self.id})

    def close(self) -> None:
        """Close all tabs and forget everything."""
        with contextlib.suppress(CommandFailed, BrowserEnded):
            self.browser.call("Target.disposeBrowserContext", {"browserContextId": self.id})
        shutil.rmtree(self.files.parent, ignore_errors=True)

    def prepare(self, tab: Tab, size: tuple[int, int], scripts: list[str], bindings: list[str]) -> None:
        """Make an empty tab ready for an episode, and have tabs that pages open be made so too."""
        self.size, self.scripts, self.bindings = size, scripts, bindings
        for answer in [self.browser.send(method, given, tab.session) for method, given in self._setup()]:
            self.browser.result(answer, "preparing a tab")

    def _setup(self) -> list[tuple[str, dict[str, Any]]]:
        width, height = self.size
        shape = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        return [
            ("Emulation.setDeviceMetricsOverride", shape),
            *(("Runtime.addBinding", {"name": name}) for name in self.bindings),
            *(("Page.addScriptToEvaluateOnNewDocument", {"source": source}) for source in self.scripts),
        ]

    # tabs

    def open(self) -> Tab:
        """Open an empty tab and make it the active one."""
        if len(self.tabs) >= MOST_TABS:
            raise NotPossible(f"there are {MOST_TABS} tabs; close one first")
        width, height = self.size
        wanted = {"url": "about:blank", "browserContextId": self.id, "width": width, "height": height}
        target = self.browser.call("Target.createTarget", wanted)["targetId"]
        tab = self._wait(lambda: next((each for each in self.tabs.values() if each.target == target), None), 10)
        if tab is None:
            raise CommandFailed("the browser did not open a tab")
        self.active = tab.name
        return tab

    def tab(self, name: str | None = None) -> Tab:
        """Return a tab, the active one unless named."""
        found = self.tabs.get(name or self.active)
        if found is None and not name:
            found = next(reversed(self.tabs.values()), None) or self.open()
            self.active = found.name
        if found is None:
            raise NotPossible(f"there is no tab {name}; there are {', '.join(self.tabs)}")
        if found.crashed:
            raise NotPossible(f"tab {found.name} has crashed; close it")
        return found

    def close_tab(self, name: str) -> None:
        """Close a tab; the last one is replaced by an empty one."""
        tab = self.tabs.get(name)
        if tab is None:
            raise NotPossible(f"there is no tab {name}; there are {', '.join(self.tabs)}")
        self.browser.call("Target.closeTarget", {"targetId": tab.target})
        self._wait(lambda: name not in self.tabs, 10)
        if not self.tabs:
            self.open()
        if self.active not in self.tabs:
            self.active = next(reversed(self.tabs))

    def call(self, tab: Tab, method: str, params: dict[str, Any] | None = None, seconds: float = 30) -> dict[str, Any]:
        """Send a command to a page."""
        return self.browser.call(method, params, tab.session, seconds)

    def titles(self) -> list[dict[str, str]]:
        """Return all tabs with their titles and addresses."""
        listed = self.browser.call("Target.getTargets")["targetInfos"]
        known = {each["targetId"]: each for each in listed}
        empty = {"title": "", "url": ""}
        return [
            {"tab_id": tab.name, **{key: known.get(tab.target, empty)[key] for key in ("title", "url")}}
            for tab in list(self.tabs.values())
        ]

    # loading

    def navigate(self, tab: Tab, url: str) -> None:
        """Go to an address, and wait until the page is there.

        Raises:
            NotPossible: it is not one of the web, or cannot be reached.
        """
        if urlsplit(url).scheme not in SCHEMES and url != "about:blank":
            raise NotPossible(f"only http and https addresses can be opened, not {url[:80]}")
        answer = self.call(tab, "Page.navigate", {"url": url}, 60)
        if answer.get("errorText"):
            raise NotPossible(f"{url} cannot be opened: {answer['errorText']}")
        self.settle(tab, LOAD_SECONDS)

    def history(self, tab: Tab, step: int) -> None:
        """Go back or forward."""
        known = self.call(tab, "Page.getNavigationHistory")
        place = known["currentIndex"] + step
        if not 0 <= place < len(known["entries"]):
            raise NotPossible("there is no page to go " + ("back" if step < 0 else "forward") + " to")
        self.call(tab, "Page.navigateToHistoryEntry", {"entryId": known["entries"][place]["id"]})
        self.settle(tab, LOAD_SECONDS)

    def reload(self, tab: Tab) -> None:
        """Load the page again."""
        self.call(tab, "Page.reload")
        self.settle(tab, LOAD_SECONDS)

    def settle(self, tab: Tab, seconds: float = SETTLE_SECONDS) -> None:
        """Wait until what an action caused has been handled: scripts, a navigation that it began, a frame drawn."""
        until = time.monotonic() + seconds
        for _ in range(3):
            left = max(0.1, until - time.monotonic())
            with contextlib.suppress(CommandFailed):  # the page went away: what comes next is waited for below
                answer = self.browser.send(
                    "Runtime.evaluate", {"expression": _QUIET, "awaitPromise": True}, tab.session
                )
                self.browser.result(answer, "waiting for the page", min(left, 2.0))
            self.browser.drain()
            if not tab.loading and not tab.asked:
                if self._opening and not self._wait(lambda: not self._opening, 2.0):
                    self._opening = 0
                return
            loaded = self._wait(lambda: not tab.loading and not tab.asked, left)
            if not loaded:
                tab.asked = False
                self.notes.append(f"the page was still loading after {seconds:g} s")
                return

    def _wait(self, found: Any, seconds: float) -> Any:
        with self._changed:
            self._changed.wait_for(found, seconds)
            return found()

    # helper code in the page

    def world(self, tab: Tab, frame: str = "") -> int:
        """Return the isolated world of a frame, made if it is not there."""
        wanted = {"frameId": frame or tab.frame, "worldName": _WORLD}
        return int(self.call(tab, "Page.createIsolatedWorld", wanted)["executionContextId"])

    def run(self, tab: Tab, function: str, *arguments: Any, node: int | None = None) -> Any:
        """Run a function of ours in the isolated world, with an element as `this` if one is given."""
        call: dict[str, Any] = {
            "functionDeclaration": function, "arguments": [{"value": each} for each in arguments],
            "returnByValue": True, "awaitPromise": True,
        }  # fmt: skip
        world = self.world(tab, tab.frames.get(node, "") if node is not None else "")
        if node is None:
            call["executionContextId"] = world
        else:
            wanted = {"backendNodeId": node, "executionContextId": world}
            call["objectId"] = self.call(tab, "DOM.resolveNode", wanted)["object"]["objectId"]
        answer = self.call(tab, "Runtime.callFunctionOn", call)
        if "exceptionDetails" in answer:
            thrown = answer["exceptionDetails"].get("exception", {}).get("description", "it failed in the page")
            raise NotPossible(str(thrown).split("\n")[0].removeprefix("Error: "))
        return answer["result"].get("value")

    # references

    def reference(self, tab: Tab, node: int, frame: str = "") -> str:
        """Return the reference of an element: the same for the same element until the page is left."""
        tab.frames[node] = frame
        if node not in tab.refs:
            self._references += 1
            tab.refs[node] = f"ref_{self._references}"
            tab.nodes[tab.refs[node]] = node
        return tab.refs[node]

    def node(self, tab: Tab, reference: str) -> int:
        """Return the element that a reference means."""
        name = reference.strip("[]")
        found = tab.nodes.get(name if name.startswith("ref_") else f"ref_{name}")
        if found is None:
            raise NotPossible(f"{reference} is not an element of this page (any more): read the page again")
        return found

    # downloads

    def downloads(self) -> list[dict[str, Any]]:
        """Return what was downloaded: name, size and state."""
        return [{key: each[key] for key in ("name", "bytes", "state")} for each in self._downloads.values()]

    def take_notes(self) -> list[str]:
        """Return what happened since this was last asked: dialogs, downloads, new tabs."""
        notes, self.notes = self.notes, []
        return notes

    # events

    def on_event(self, method: str, params: dict[str, Any], session: str) -> None:
        """Take an event of the browser. Events of other contexts are left alone."""
        kind = method.replace(".", "_")
        if session:
            tab = self._sessions.get(session)
            if tab is not None and hasattr(self, f"_on_{kind}"):
                getattr(self, f"_on_{kind}")(tab, params)
        elif hasattr(self, f"_all_{kind}"):
            getattr(self, f"_all_{kind}")(params)
        with self._changed:
            self._changed.notify_all()

    def _all_Target_attachedToTarget(self, params: dict[str, Any]) -> None:
        info, session = params["targetInfo"], params["sessionId"]
        if info.get("browserContextId") != self.id:
            return
        if info["type"] != "page" or len(self.tabs) >= MOST_TABS:
            self._opening = 0
            self.browser.send("Runtime.runIfWaitingForDebugger", {}, session)
            if info["type"] == "page":
                self.browser.send("Target.closeTarget", {"targetId": info["targetId"]})
            return
        self._count += 1
        tab = Tab(f"tab_{self._count}", info["targetId"], session)
        self._sessions[session] = tab
        asked: list[tuple[str, dict[str, Any]]] = [
            ("Page.enable", {}), ("Runtime.enable", {}), ("Network.enable", {}), ("Log.enable", {}), ("DOM.enable", {}),
            ("Emulation.setFocusEmulationEnabled", {"enabled": True}),
            ("Page.setInterceptFileChooserDialog", {"enabled": True}),
            *self._setup(),
            ("Runtime.runIfWaitingForDebugger", {}),
        ]  # fmt: skip
        answers = [(method, self.browser.send(method, given, session)) for method, given in asked]
        for method, answer in answers:
            self.browser.result(answer, method)
        if self._opening or info.get("openerId"):
            self._opening = max(0, self._opening - 1)
            opener = next((each.name for each in self.tabs.values() if each.target == info["openerId"]), "a page")
            self.notes.append(f"{opener} opened {tab.name}; switch_tab goes there")
        self.tabs[tab.name] = tab
        if not self.active:
            self.active = tab.name

    def _all_Target_detachedFromTarget(self, params: dict[str, Any]) -> None:
        tab = self._sessions.pop(params["sessionId"], None)
        if tab is not None:
            self.tabs.pop(tab.name, None)

    def _all_Browser_downloadWillBegin(self, params: dict[str, Any]) -> None:
        if len(self._downloads) >= MOST_DOWNLOADS:
            self.browser.send("Browser.cancelDownload", {"guid": params["guid"], "browserContextId": self.id})
            return
        name = "".join(each if each.isalnum() or each in "-_. " else "_" for each in params["suggestedFilename"])
        name = name.lstrip(".")[-100:] or "download"
        taken = {each["name"] for each in self._downloads.values()}
        while name in taken or (self.files / name).exists():
            name = f"new-{name}"
        self._downloads[params["guid"]] = {"name": name, "bytes": 0, "state": "inProgress"}

    def _all_Browser_downloadProgress(self, params: dict[str, Any]) -> None:
        known = self._downloads.get(params["guid"])
        if known is None or known["state"] != "inProgress":
            return
        known["bytes"] = int(params["receivedBytes"])
        if known["bytes"] > MOST_DOWNLOAD or int(params["totalBytes"]) > MOST_DOWNLOAD:
            known["state"] = "canceled"
            self.browser.send("Browser.cancelDownload", {"guid": params["guid"], "browserContextId": self.id})
        elif params["state"] == "completed":
            self._keep(params["guid"], known)
        elif params["state"] == "canceled":
            known["state"] = "canceled"
        if known["state"] != "inProgress":
            self.notes.append(f"download of {known['name']}: {known['state']}, {known['bytes']} bytes")

    def _keep(self, name: str, known: dict[str, Any]) -> None:
        came = self._incoming / name
        try:
            came.rename(self.files / known["name"])
            known["state"] = "completed"
        except OSError as error:
            known["state"] = f"lost ({error.strerror})"

    def _on_Page_frameNavigated(self, tab: Tab, params: dict[str, Any]) -> None:
        frame = params["frame"]
        tab.asked = False
        if frame.get("parentId"):
            return
        tab.frame, tab.url = frame["id"], frame["url"]
        tab.refs.clear()
        tab.nodes.clear()
        tab.frames.clear()
        scheme = urlsplit(tab.url).scheme
        if scheme not in (*SCHEMES, "about", "blob", "data", "chrome-error"):
            self.notes.append(f"pages of {scheme}: are not allowed; the tab was emptied")
            self.browser.send("Page.navigate", {"url": "about:blank"}, tab.session)

    def _on_Page_navigatedWithinDocument(self, tab: Tab, params: dict[str, Any]) -> None:
        if params["frameId"] == tab.frame:
            tab.url = params["url"]

    def _on_Page_windowOpen(self, tab: Tab, params: dict[str, Any]) -> None:
        self._opening += 1

    def _on_Page_frameRequestedNavigation(self, tab: Tab, params: dict[str, Any]) -> None:
        if params.get("disposition", "currentTab") == "currentTab":
            tab.asked = True

    def _on_Page_frameStartedLoading(self, tab: Tab, params: dict[str, Any]) -> None:
        tab.loading.add(params["frameId"])
        tab.asked = False

    def _on_Page_frameStoppedLoading(self, tab: Tab, params: dict[str, Any]) -> None:
        tab.loading.discard(params["frameId"])
        tab.asked = False

    def _on_Page_frameDetached(self, tab: Tab, params: dict[str, Any]) -> None:
        tab.loading.discard(params["frameId"])

    def _on_Page_javascriptDialogOpening(self, tab: Tab, params: dict[str, Any]) -> None:
        accept, text = self.dialogs
        accept = accept or params["type"] in ("alert", "beforeunload")
        answer = {"accept": accept, **({"promptText": text} if params["type"] == "prompt" else {})}
        self.browser.send("Page.handleJavaScriptDialog", answer, tab.session)
        word = "accepted" if accept else "dismissed"
        self.notes.append(f"a dialog ({params['type']}) said {params['message'][:500]!r}; it was {word}")

    def _on_Runtime_consoleAPICalled(self, tab: Tab, params: dict[str, Any]) -> None:
        words = [str(each.get("value", each.get("description", each["type"]))) for each in params["args"]]
        tab.console.append(f"{params['type']}: {' '.join(words)[:2000]}")

    def _on_Runtime_exceptionThrown(self, tab: Tab, params: dict[str, Any]) -> None:
        details = params["exceptionDetails"]
        said = details.get("exception", {}).get("description") or details["text"]
        tab.console.append(f"uncaught: {str(said)[:2000]}")

    def _on_Runtime_bindingCalled(self, tab: Tab, params: dict[str, Any]) -> None:
        if len(tab.bound) < KEPT:
            tab.bound.append((params["executionContextId"], params["payload"]))

    def _on_Log_entryAdded(self, tab: Tab, params: dict[str, Any]) -> None:
        entry = params["entry"]
        tab.console.append(f"{entry['level']}: {entry['text'][:2000]} {entry.get('url', '')[:500]}".rstrip())

    def _on_Network_requestWillBeSent(self, tab: Tab, params: dict[str, Any]) -> None:
        request = params["request"]
        if len(tab.requests) > KEPT:
            tab.requests.clear()
        tab.requests[params["requestId"]] = (request["method"], request["url"][:2000], params["timestamp"])

    def _on_Network_responseReceived(self, tab: Tab, params: dict[str, Any]) -> None:
        method, url, began = tab.requests.pop(params["requestId"], ("GET", "", params["timestamp"]))
        answer = params["response"]
        took = 1000 * (params["timestamp"] - began)
        tab.network.append(f"{method} {url or answer['url']} {answer['status']} {answer['mimeType']} {took:.0f} ms")

    def _on_Network_loadingFailed(self, tab: Tab, params: dict[str, Any]) -> None:
        known = tab.requests.pop(params["requestId"], None)
        if known is not None:
            tab.network.append(f"{known[0]} {known[1]} failed: {params['errorText']}")

    def _on_Input_dragIntercepted(self, tab: Tab, params: dict[str, Any]) -> None:
        tab.drag = params["data"]

    def _on_Inspector_targetCrashed(self, tab: Tab, params: dict[str, Any]) -> None:
        tab.crashed = True
        tab.loading.clear()
        self.notes.append(f"the page in {tab.name} has crashed")
