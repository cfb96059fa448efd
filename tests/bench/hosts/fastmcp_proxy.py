# fastmcp 4 as a proxy, which a host starts over stdio. See README.md beside this file.
import asyncio
import sys

from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from fastmcp.server import create_proxy
from host import server


async def main():
    url, command, args, env = server()
    target = url or StdioTransport(command, args, env, keep_alive=True)
    if "--one-session" not in sys.argv[: sys.argv.index("--")]:
        await create_proxy(target).run_async(transport="stdio", show_banner=False)
        return
    # A client that is connected is used for all requests.
    async with Client(target, mode="legacy") as client:
        await create_proxy(client).run_async(transport="stdio", show_banner=False)


asyncio.run(main())
