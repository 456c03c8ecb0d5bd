"""The port of a service: its URL leads to what listens there in a replica."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.platform.conftest import publish
from tests.platform.parts import environ, serving

SITE = """
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from aenv import register_tool


class Page(BaseHTTPRequestHandler):
    def do_GET(self):
        body = f"you asked for {self.path}".encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


threading.Thread(target=HTTPServer(("127.0.0.1", 9000), Page).serve_forever, daemon=True).start()


@register_tool
def nothing() -> None: ...
"""


def test_the_url_of_a_service_leads_to_its_port(data: Path) -> None:
    asyncio.run(publish(data, "site", SITE))
    with serving(data, auth=True) as platform:
        token = platform.token("ann")
        options = ["-p", "9000", "--wait", "60", "-o", "json"]
        command = [sys.executable, "-m", "aenv.cli", "service", "create", "site", *options]
        variables = {**environ(data), "AENV_SYSTEM_URL": platform.url, "AENV_API_KEY": token}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        made = json.loads(done.stdout)
        assert made["port"] == 9000
        assert made["service_url"].endswith(f"/service/{made['id']}/port/9000")
        request = urllib.request.Request(f"{made['service_url']}/page", headers={"authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert answer.read() == b"you asked for /page"
