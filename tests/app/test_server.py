"""The explorer's server: who may speak to it, where it listens, how it ends."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest
from explorer_process import Explorer, explorer
from typer.testing import CliRunner

import thermoformer
from thermoformer.app import Place, place_for
from thermoformer.app import guard as guards
from thermoformer.app.guard import LARGEST_BODY, Guard
from thermoformer.cli import app

pytest.importorskip("marimo", reason="needs the extra `app`")


@pytest.fixture(scope="module")
def running():
    with explorer() as here:
        yield here
        code, printed = here.stop()
        assert code == 0 and "Traceback" not in printed, printed


@pytest.fixture(scope="module")
def with_token():
    with explorer("--host", "0.0.0.0") as here:
        yield here
        code, printed = here.stop()
        assert code == 0 and "Traceback" not in printed, printed


def ask(here: Explorer, method: str = "GET", path: str = "/", body: bytes | None = None, **headers: str):
    connection = http.client.HTTPConnection("127.0.0.1", here.port, timeout=30)
    given = {"Host": f"127.0.0.1:{here.port}"} | {name.replace("_", "-"): value for name, value in headers.items()}
    with closing(connection):
        connection.request(method, path, body=body, headers=given)
        with closing(connection.getresponse()) as answer:
            text = "" if answer.status == 101 else answer.read().decode(errors="replace")
            return answer.status, text, answer


WEBSOCKET = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec_WebSocket_Version": "13",
}


def test_its_own_page(running):
    for host in ("127.0.0.1", "localhost"):
        status, page, answer = ask(running, Host=f"{host}:{running.port}")
        assert status == 200 and "thermoformer explorer" in page
    policy = answer.getheader("content-security-policy")
    assert policy is not None and "default-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert answer.getheader("access-control-allow-origin") is None and answer.getheader("server") is None
    own = f"http://127.0.0.1:{running.port}"
    assert ask(running, path="/ws?session_id=s_abc123", Origin=own, **WEBSOCKET)[0] == 101


@pytest.mark.parametrize(
    ("headers", "status", "words"),
    [
        ({"Host": "rebound.example"}, 421, "host: got 'rebound.example'"),
        ({"Host": "127.0.0.1:1"}, 421, "host: got '127.0.0.1:1'"),
        ({"Origin": "http://elsewhere.example"}, 403, "origin: got 'http://elsewhere.example'"),
        ({"Origin": "null"}, 403, "origin: got 'null'"),
        ({"Origin": "http://["}, 403, "origin: got 'http://['"),
        ({"Origin": "http://127.0.0.1:1"}, 403, "origin: got 'http://127.0.0.1:1'"),
        ({"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"}, 403, "origin: got a request of another site"),
        ({"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "cors"}, 403, "origin: got a request of another site"),
    ],
)
def test_others_are_refused(running, headers, status, words):
    got = ask(running, **headers)
    assert got[0] == status and words in got[1]
    upgraded = ask(running, path="/ws?session_id=s_abc123", **(headers | WEBSOCKET))
    assert upgraded[0] == 403
    posted = ask(running, "POST", "/api/kernel/set_ui_element_value", body=b"{}", **headers)
    assert posted[0] == status


def test_a_link_from_elsewhere_opens_the_page(running):
    assert ask(running, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")[0] == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/kernel/execute"),
        ("POST", "/api/kernel/read_code"),
        ("POST", "/api/export/html"),
        ("GET", "/api/status/connections"),
        ("GET", "/terminal/ws"),
        ("GET", "/assets/../explorer.py"),
        ("PUT", "/"),
        ("OPTIONS", "/api/kernel/set_ui_element_value"),
    ],
)
def test_what_the_page_does_not_ask_for_is_not_there(running, method, path):
    assert ask(running, method, path)[0] == 404


def test_large_requests_are_refused(running):
    status, words, _ = ask(running, "POST", "/api/kernel/function_call", Content_Length=str(LARGEST_BODY + 1))
    assert status == 413 and f"expected at most {LARGEST_BODY}" in words


def test_it_listens_on_this_machine_alone(running):
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{running.port:04X}")]
    assert listening == [f"0100007F:{running.port:04X}"]


def test_ctrl_c_ends_it_though_a_page_is_open():
    with explorer() as here, socket.create_connection(("127.0.0.1", here.port)) as page:
        host = f"127.0.0.1:{here.port}"
        lines = ["GET /ws?session_id=s_abc124 HTTP/1.1", f"Host: {host}", f"Origin: http://{host}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in WEBSOCKET.items()]
        page.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        assert b"101" in page.recv(100)
        code, printed = here.stop()
    assert code == 0 and "Traceback" not in printed, printed


def test_pages_open_while_others_come_and_go():
    with explorer() as here:
        own = {"Origin": f"http://127.0.0.1:{here.port}"} | WEBSOCKET

        def come_and_go(number: int) -> list[int]:
            # The same page twice: the second comes back to what the first left, and leaves while it is being told.
            return [ask(here, path=f"/ws?session_id=s_abc{number:03d}", **own)[0] for _ in range(2)]

        with ThreadPoolExecutor(3) as readers:
            visits = [readers.submit(come_and_go, number) for number in range(12)]
            pages = [readers.submit(ask, here) for _ in range(60)]
            assert {status for visit in visits for status in visit.result()} == {101}
            assert {page.result()[0] for page in pages} == {200}
        code, printed = here.stop()
    assert code == 0 and "Traceback" not in printed, printed


def refused(application, scope=None, receive=None):
    """What a guard of an application sends for a request: the messages."""
    sent = []

    async def nothing():
        return {"type": "http.request", "body": b""}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": [(b"host", b"h:1")]} | (
        scope or {}
    )
    asyncio.run(Guard(application, ["h:1"])(scope, receive or nothing, send))
    return sent


def test_a_page_closed_while_it_is_answered_is_no_error(caplog):
    async def speak(scope, receive, send):
        if scope["says"]:
            with suppress(OSError):
                await send({"type": "websocket.send", "text": "..."})
        await receive()
        raise RuntimeError("nobody there")

    async def closed(message):
        raise ConnectionResetError

    async def left():
        return {"type": "websocket.disconnect", "code": 1001}

    async def there():
        return {"type": "websocket.receive", "text": "..."}

    scope = {"type": "websocket", "path": "/ws", "headers": [(b"host", b"h:1")]}
    for says, receive in ((True, there), (False, left)):
        asyncio.run(Guard(speak, ["h:1"])(scope | {"says": says}, receive, closed))
    assert not caplog.records
    asyncio.run(Guard(speak, ["h:1"])(scope | {"says": False}, there, closed))
    assert caplog.messages == ["websocket /ws failed: RuntimeError('nobody there')"]


def test_errors_and_interruptions_are_one_line(caplog):
    async def broken(scope, receive, send):
        raise TypeError("a bug\x1b[31m")

    async def interrupted(scope, receive, send):
        raise asyncio.CancelledError

    start, body = refused(broken)
    assert start["status"] == 400 and b"cannot answer" in body["body"]
    assert caplog.messages == ["GET / failed: TypeError('a bug\\x1b[31m')"] and caplog.records[0].exc_info is None
    assert refused(interrupted)[0]["status"] == 503 and len(caplog.records) == 1


def test_beyond_this_machine_only_with_a_token(with_token):
    here = with_token
    address, token = here.link.split("?access_token=")
    assert address == f"http://127.0.0.1:{here.port}/" and len(token) == 32
    status, page, _ = ask(here)
    assert status == 401 and "thermoformer explorer" in page and "__MARIMO" not in page
    status, page, answer = ask(here, path=f"/?learning.width=20&access_token={token}")
    cookie = answer.getheader("set-cookie")
    assert status == 303 and answer.getheader("location") == "/?learning.width=20" and cookie is not None
    assert "HttpOnly" in cookie and token not in cookie
    status, page, _ = ask(here, Cookie=cookie.split(";")[0])
    assert status == 200 and "__MARIMO" in page
    own = f"http://127.0.0.1:{here.port}"
    assert ask(here, path="/ws?session_id=s_abc123", Origin=own, **WEBSOCKET)[0] != 101
    assert ask(here, path=f"/?access_token={token}", Origin="http://elsewhere.example")[0] == 403


@pytest.mark.parametrize("token", ["0" * 32, "", "%C3%A9", "%FF", "%00", "a" * 5000])
def test_wrong_tokens_are_refused(with_token, token):
    assert ask(with_token, path=f"/?access_token={token}")[0] == 401
    cookie = f"thermoformer_{with_token.port}={token}"
    assert ask(with_token, path="/manifest.json", Cookie=cookie)[0] == 401
    assert ask(with_token, Authorization="Bearer é")[0] == 401
    assert ask(with_token, "POST", "/auth/login", body=f"password={token}".encode())[0] == 404


def test_half_sent_requests_without_a_token_are_answered_and_closed(with_token):
    """Nothing of their bodies is kept: each is refused by its head."""
    host, size = f"127.0.0.1:{with_token.port}", 2**20
    pages = []
    for path, status in (("/auth/login", b"404"), ("/api/kernel/function_call", b"401")):
        page = socket.create_connection(("127.0.0.1", with_token.port), timeout=30)
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {2 * size}\r\n\r\n"
        with suppress(ConnectionError):
            page.sendall(head.encode() + b"a" * size)
        assert status in page.recv(100)
        pages.append(page)
    for page in pages:
        with closing(page), suppress(ConnectionError):
            while page.recv(1000):
                pass


@pytest.mark.parametrize(
    "request_text",
    [
        "GET / HTTP/9.9\r\n\r\n",
        "\x16\x03\x01",
        "POST /api/kernel/instantiate HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "POST /api/kernel/instantiate HTTP/1.1\r\nHost: HOST\r\nContent-Length: 1\r\n\r\n\xff",
        "POST /api/kernel/function_call HTTP/1.1\r\nHost: HOST\r\nContent-Length: 9\r\n\r\n{",
        "GET /?access_token=%C3%A9&file=%00 HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "GET /ws?session_id=s_abc125 HTTP/1.1\r\nHost: HOST\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        "GET /@file/-1-a.png HTTP/1.1\r\nHost: HOST\r\nRange: bytes=\xe9\r\n\r\n",
    ],
)
def test_malformed_requests_leave_the_page_as_it_is(running, request_text):
    """That they print no traceback is checked when the explorer of these tests stops."""
    with socket.create_connection(("127.0.0.1", running.port), timeout=1) as page:
        page.sendall(request_text.replace("HOST", f"127.0.0.1:{running.port}").encode("latin-1"))
        with suppress(TimeoutError, ConnectionError):
            page.recv(1000)
    assert ask(running)[0] == 200


def test_the_page_names_no_folder_of_this_machine(running):
    page = ask(running)[1].replace("%2F", "/")
    assert '"filename": "explorer.py"' in page
    # Whether installed or in a checkout: the folder of the library and each one above it.
    folders = [str(folder) for folder in Path(thermoformer.__file__).parents if len(folder.parts) > 2]
    assert folders and not [folder for folder in folders if folder in page]
    assert "file:///" not in page


@pytest.fixture
def limited(monkeypatch):
    """A small server on the explorer's connections, with time limits of a fraction of a second: its port."""
    import uvicorn

    from thermoformer.app import connections

    monkeypatch.setattr(connections, "REQUEST_TIME", 0.3)
    monkeypatch.setattr(connections, "ANSWERED_TIME", 0.1)
    monkeypatch.setattr(connections, "MOST_WAITING", 3)

    async def application(scope, receive, send):
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            await asyncio.sleep(0.8)
            await send({"type": "websocket.send", "text": "still open"})
            return
        if scope["path"] == "/body":
            with suppress(Exception):
                while (await receive()).get("more_body"):
                    pass
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(application, http=connections.Connection, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield listening.getsockname()[1]
    server.should_exit = True
    thread.join()
    listening.close()


def opened(port: int, text: str) -> socket.socket:
    page = socket.create_connection(("127.0.0.1", port), timeout=20)
    page.sendall(text.encode())
    return page


def ended(page: socket.socket) -> bytes:
    """What a connection still receives until it is closed by the other side."""
    got = b""
    with closing(page), suppress(ConnectionError):
        while piece := page.recv(1000):
            got += piece
    return got


def test_slow_requests_are_closed(limited):
    asked = "HTTP/1.1\r\nHost: h\r\n"
    assert b"200" not in ended(opened(limited, "GET / HT"))
    assert b"200" not in ended(opened(limited, f"POST /body {asked}Content-Length: 5\r\n\r\nab"))
    # Answered before all of its body has come.
    assert b"200" in ended(opened(limited, f"POST / {asked}Content-Length: 5\r\n\r\nab"))
    # Several requests over one connection have a time limit each.
    page = opened(limited, f"GET / {asked}\r\n")
    for _ in range(3):
        assert b"200" in page.recv(1000)
        time.sleep(0.2)
        page.sendall(f"GET / {asked}\r\n".encode())
    page.close()


def test_an_open_websocket_has_no_time_limit(limited):
    asked = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in WEBSOCKET.items())
    assert b"still open" in ended(opened(limited, f"GET / HTTP/1.1\r\nHost: h\r\n{asked}\r\n"))


def test_of_too_many_waiting_connections_the_oldest_is_closed(limited, monkeypatch):
    from thermoformer.app import connections

    monkeypatch.setattr(connections, "REQUEST_TIME", 30.0)
    pages = [opened(limited, "GET") for _ in range(3)]
    last = opened(limited, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
    assert b"200" in last.recv(1000) and ended(pages[0]) == b""
    for page in (*pages[1:], last):
        page.close()


def test_places():
    assert place_for("127.0.0.1", 0) == Place() and place_for("::1", 0).local
    assert Place("::1").link(8000) == "http://[::1]:8000/"
    assert Place("0.0.0.0", token="a" * 16).hosts(8000) is None
    # Browsers leave the usual port of the web out.
    assert "127.0.0.1" in (Place().hosts(80) or ()) and "127.0.0.1" not in (Place().hosts(8000) or ())
    for given, words in (
        ({"host": "0.0.0.0"}, "token: got none; expected one"),
        ({"host": "example"}, "host: got 'example'"),
        ({"port": 70000}, "port: got 70000"),
        ({"token": "short"}, "token: got 5 characters"),
        ({"token": "a" * 15 + "&"}, "token: got 16 characters"),
    ):
        with pytest.raises(ValueError, match=words):
            Place(**given)
    for host, port, words in ((3, 0, "host: got 3; expected an address"), ("127.0.0.1", "80", "port: got '80'")):
        with pytest.raises(ValueError, match=words):
            place_for(host, port)


def test_the_command_says_what_is_wrong(running):
    for options, words in (
        (["--host", "example"], "host: got 'example'"),
        (["--token", "short"], "token: got 5 characters"),
        (["--port", str(running.port)], f"port: got {running.port} of 127.0.0.1"),
    ):
        result = CliRunner().invoke(app, ["explore", "--no-browser", *options])
        assert result.exit_code == 2 and words in result.output, result.output


def test_bodies_without_a_length_are_counted(monkeypatch):
    """Pieces beyond the limit never reach the page's server."""
    got = []

    async def application(scope, receive, send):
        while (message := await receive())["type"] == "http.request":
            got.append(len(message["body"]))
        raise RuntimeError("the page's server was left alone")

    async def pieces():
        return {"type": "http.request", "body": bytes(2**20), "more_body": True}

    scope = {"method": "POST", "path": "/api/kernel/function_call"}
    start, _ = refused(application, scope, pieces)
    assert start["status"] == 413 and sum(got) == LARGEST_BODY
    got.clear()
    monkeypatch.setattr(guards, "LARGEST_TOTAL", 2**21)
    assert refused(application, scope, pieces)[0]["status"] == 503 and sum(got) == 2**21
