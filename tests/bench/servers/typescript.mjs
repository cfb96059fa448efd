// The TypeScript SDKs as servers, run as `node typescript.mjs one-transport|stateless PORT` in the folder that holds
// node_modules. See README.md beside this file for what all servers here have in common.
import { appendFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { randomUUID } from "node:crypto";

const require = createRequire(`${process.cwd()}/`);
const { z } = require("zod");
const [mode, port] = process.argv.slice(2);

const answer = (text) => ({ content: [{ type: "text", text }] });
const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
const text = z.string();

function offer(server) {
  const annotations = { readOnlyHint: true };
  server.registerTool("echo", { inputSchema: z.object({ text }), annotations }, async ({ text }) => answer(text));
  const slow = { inputSchema: z.object({ text, seconds: z.number() }), annotations };
  server.registerTool("slow", slow, async ({ text, seconds }) => {
    console.log(`running ${text}`);
    await pause(seconds);
    return answer(text);
  });
  if (process.env.OTHER_TOOLS) {
    server.registerTool("extra", { inputSchema: z.object({ text }), annotations }, async ({ text }) => answer(text));
    return;
  }
  const append = { inputSchema: z.object({ text, seconds: z.number().default(0) }) };
  server.registerTool("append", append, async ({ text, seconds }) => {
    appendFileSync(process.env.LEDGER, `${text}\n`);
    console.log(`running ${text}`);
    await pause(seconds);
    return answer(text);
  });
}

async function handler() {
  const info = { name: mode, version: "1" };
  if (mode === "one-transport") {
    const { McpServer } = require("@modelcontextprotocol/sdk/server/mcp.js");
    const { StreamableHTTPServerTransport } = require("@modelcontextprotocol/sdk/server/streamableHttp.js");
    const server = new McpServer(info);
    offer(server);
    const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: randomUUID });
    await server.connect(transport);
    return (request, response) => transport.handleRequest(request, response);
  }
  const { McpServer, createMcpHandler } = require("@modelcontextprotocol/server");
  const { toNodeHandler } = require("@modelcontextprotocol/node");
  return toNodeHandler(
    createMcpHandler(() => {
      const server = new McpServer(info);
      offer(server);
      return server;
    }),
  );
}

createServer(await handler()).listen(Number(port), "127.0.0.1", () => console.log("listening"));
