# A host on the Python SDK 2. See README.md beside this file.
import asyncio

from host import host, on_message, server
from mcp import Client, StdioServerParameters


async def main():
    url, command, args, env = server()
    client = Client(url or StdioServerParameters(command=command, args=args, env=env), message_handler=on_message)

    async def tools():
        return (await client.list_tools()).tools

    await host(client, client.call_tool, tools, lambda: client.listen(tools_list_changed=True))


asyncio.run(main())
