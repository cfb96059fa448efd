# What the hosts on the Python SDKs have in common. See README.md beside this file.
import asyncio
import contextlib
import json
import os
import sys

from mcp import MCPError
from mcp.client.subscriptions import SubscriptionLost


def tell(line):
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


async def on_message(message):
    # A modern session has its subscription for this, and some SDKs tell it here as well.
    if type(message).__name__ == "ToolListChangedNotification" and not following:
        tell({"event": "list_changed"})


following = False


async def follow(listen):
    """Hears of changed tools in a modern session, whose subscriptions may end."""
    global following
    following = True
    while True:
        with contextlib.suppress(SubscriptionLost):
            async with listen() as changes:
                async for _ in changes:
                    tell({"event": "list_changed"})
        await asyncio.sleep(1)


async def answer(line, call, tools):
    order = json.loads(line)
    timeout = order["timeout_ms"] / 1000
    try:
        if "call" in order:
            result = await call(order["call"], order["args"], timeout)
            said = {"text": getattr(result.content[0], "text", None), "is_error": bool(result.is_error)}
        else:
            said = {"tools": [tool.name for tool in await asyncio.wait_for(tools(), timeout)]}
    except MCPError as error:
        said = {"error": {"code": error.code, "message": error.message, "data": error.data}}
    except Exception as error:
        said = {"error": {"message": f"{type(error).__name__}: {error}"}}
    tell({"id": order["id"]} | said)


async def host(client, call, tools, listen):
    """Serves what stdin says with this client."""
    stdin = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    try:
        await client.__aenter__()
    except BaseException as error:
        tell({"event": "failed", "error": f"{type(error).__name__}: {error}"})
        raise
    tell({"event": "ready", "version": client.protocol_version})
    tasks = set()
    if client.protocol_version >= "2026-07-28":
        tasks.add(asyncio.create_task(follow(listen)))
    while line := await stdin.readline():
        tasks.add(asyncio.create_task(answer(line, call, tools)))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await client.__aexit__(None, None, None)


def server():
    """Of this host: the URL, or the command, its arguments and its environment."""
    words = sys.argv[sys.argv.index("--") + 1 :]
    url = words[1] if words[0] == "--url" else None
    return url, words[0], words[1:], dict(os.environ)
