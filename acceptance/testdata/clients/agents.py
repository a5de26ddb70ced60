"""The client of the Synadia Agent Protocol for NATS from PyPI: discovery, liveness, prompts, an approval by a query chunk."""

import asyncio
import json
import os

import nats
from synadia_ai.agents import Agents, Attachment, Query, ResponseChunk, StatusChunk


async def connect(key, errors):
    async def on_error(err):
        errors.append(str(err))

    return await nats.connect(os.environ["BASE_URL"], nkeys_seed=key, error_cb=on_error)


async def prompt(agent, text, answer=None, **options):
    out = {"text": "", "statuses": [], "queries": [], "error": ""}
    options.setdefault("max_wait_s", 20)
    try:
        async for chunk in agent.prompt(text, **options):
            if isinstance(chunk, ResponseChunk):
                out["text"] += chunk.text
            elif isinstance(chunk, StatusChunk):
                out["statuses"].append(chunk.status)
                if answer is None and chunk.status.startswith("waiting: "):
                    break
            elif isinstance(chunk, Query):
                out["queries"].append(chunk.prompt)
                await chunk.reply(answer)
    except Exception as err:
        out["error"] = str(err)
    return out


async def discover(client):
    return {a.agent: a for a in await client.discover()}


async def main():
    out, errors = {"errors": []}, []
    phone = await connect(os.environ["API_KEY"], out["errors"])
    client = Agents(nc=phone)
    agents = await discover(client)
    assistant = agents["assistant"]
    out["agents"] = sorted(f"{a.agent} {a.owner} {a.session_name} {a.protocol_version} {a.prompt_subject}" for a in agents.values())
    out["limits"] = [assistant.prompt_endpoint.max_payload_bytes, assistant.prompt_endpoint.attachments_ok]
    out["ping"] = [await client.ping(assistant.instance_id), await client.ping("assistant-nobody", timeout=0.5)]
    status = await assistant.status()
    out["status"] = [status.agent, status.owner, status.session, status.instance_id == assistant.instance_id]
    beat = asyncio.Event()
    client.on_heartbeat(assistant.instance_id, lambda _: beat.set())
    await asyncio.wait_for(beat.wait(), 30)
    out["online"] = client.liveness(assistant.instance_id).is_online
    out["hello"] = await prompt(assistant, "Hello!")
    out["attached"] = await prompt(assistant, "Hello!", attachments=[Attachment.from_bytes("a.txt", b"a note")])
    out["committee"] = await prompt(agents["committee"], "Hello!")
    out["unknown"] = await prompt(assistant, "Hello!", subject="agents.prompt.nobody.phone.main")

    user = await connect(os.environ["USER_KEY"], out["errors"])
    decider = Agents(nc=user)
    out["approved"] = await prompt((await discover(decider))["assistant"], "What time is it in Tokyo?", "approve")
    await decider.close()

    # The last one: no question of another session of its partition is answered while it waits for approval.
    out["clock"] = await prompt(assistant, "What time is it in Tokyo?", subject="agents.prompt.assistant.phone.clock")
    await client.close()
    await phone.close()
    await user.close()
    print(json.dumps(out))


asyncio.run(main())
