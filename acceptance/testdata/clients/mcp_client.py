"""The client of the Python SDK: the older generation of the protocol over HTTP, the newer one over standard input and output."""

import asyncio
import json
import os

from mcp import Client, ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client

QUESTION = {"question": "What time is it in Tokyo?"}


def report(tools, result, version):
    dumped = result.model_dump(by_alias=True)
    answer = (dumped.get("structuredContent") or {}).get("answer") or dumped["content"][0]["text"]
    return {"tools": sorted(t.name for t in tools.tools), "answer": answer, "version": version}


async def main():
    out = {}
    headers = {"Authorization": "Bearer " + os.environ["API_KEY"]}
    async with create_mcp_http_client(headers=headers) as http:
        async with streamable_http_client(os.environ["BASE_URL"] + "/mcp", http_client=http) as streams:
            async with ClientSession(streams[0], streams[1]) as session:
                started = (await session.initialize()).model_dump(by_alias=True)
                out["http"] = report(await session.list_tools(), await session.call_tool("ask", QUESTION), started["protocolVersion"])
    command, *args = json.loads(os.environ["CONCLAVE_SERVE"])
    async with Client(stdio_client(StdioServerParameters(command=command, args=args))) as client:
        out["stdio"] = report(await client.list_tools(), await client.call_tool("ask", QUESTION), client.protocol_version)
    print(json.dumps(out))


asyncio.run(main())
