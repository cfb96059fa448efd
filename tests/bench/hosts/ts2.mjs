// A host on the TypeScript SDK 2. See README.md beside this file.
import { host, installed, tell } from "./host.mjs";

const { Client, StreamableHTTPClientTransport } = await installed("@modelcontextprotocol/client");
const { StdioClientTransport } = await installed("@modelcontextprotocol/client/stdio");

const mode = process.argv.slice(0, process.argv.indexOf("--")).includes("auto") ? "auto" : "legacy";
const onChanged = () => tell({ event: "list_changed" });
const client = new Client(
  { name: "ts2", version: "1" },
  { versionNegotiation: { mode }, listChanged: { tools: { autoRefresh: false, debounceMs: 0, onChanged } } },
);
const connect = async ({ url, command }) => {
  const transport = url
    ? new StreamableHTTPClientTransport(url)
    : new StdioClientTransport({ command: command[0], args: command.slice(1), env: process.env });
  await client.connect(transport);
  return client.getNegotiatedProtocolVersion();
};
await host(client, connect, (params, options) => client.callTool(params, options));
