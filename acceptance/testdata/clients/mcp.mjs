import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

// The client of the npm SDK, over HTTP and over standard input and output.
const [command, ...args] = JSON.parse(process.env.CONCLAVE_SERVE);
const transports = {
  http: () => new StreamableHTTPClientTransport(new URL(process.env.BASE_URL + "/mcp"), { requestInit: { headers: { Authorization: "Bearer " + process.env.API_KEY } } }),
  stdio: () => new StdioClientTransport({ command, args }),
};
const out = {};
for (const [name, make] of Object.entries(transports)) {
  const client = new Client({ name: "test", version: "1" });
  await client.connect(make());
  const { tools } = await client.listTools();
  const asked = await client.callTool({ name: "ask", arguments: { question: "What time is it in Tokyo?" } }, undefined, { timeout: 60000 });
  let unknown = "";
  try {
    const r = await client.callTool({ name: "no_such_tool", arguments: {} });
    unknown = r.isError ? "error" : "";
  } catch (e) {
    unknown = "error";
  }
  out[name] = { tools: tools.map((t) => t.name).sort(), answer: asked.structuredContent?.answer ?? asked.content[0].text, unknown };
  await client.close();
}
console.log(JSON.stringify(out));
