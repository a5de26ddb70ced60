"""A tool for Conclave: change DEFINITION and run(), then start it with: .venv/bin/python tool.py

It needs a NATS client and nothing else: python3 -m venv .venv && .venv/bin/pip install nats-py nkeys
"""

import asyncio
import json
import os
import signal
import ssl

import nats

# What the model reads. After a change the tool waits for you: conclave tool accept word_count
DEFINITION = {
    "name": "word_count",
    "description": "Counts the words and characters of a text.",
    "parameters": {
        "type": "object",
        "properties": {"text": {"type": "string", "description": "the text"}},
        "required": ["text"],
        "additionalProperties": False,
    },
    "version": "1",
}


def run(args):
    """Runs one call. The result, and the text of an exception, are for the model."""
    text = args["text"]
    return f"{len(text.split())} words, {len(text)} characters"


async def main():
    folder = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(folder, "conclave.json"), encoding="utf-8") as f:
        config = json.load(f)
    name, principal = DEFINITION["name"], config["principal"]
    definition = json.dumps(DEFINITION).encode()
    stop = asyncio.Event()

    async def announce():
        await nc.publish("tool.schema." + name, definition)

    async def on_error(e):
        print("nats:", e, flush=True)

    options = {}
    if "tls://" in config["server"]:
        options["tls"] = ssl.create_default_context(cafile=config.get("ca"))
    nc = await nats.connect(
        config["server"].split(","),
        nkeys_seed=config["key"],
        name=principal,
        max_reconnect_attempts=-1,  # also while Conclave restarts
        reconnected_cb=announce,
        error_cb=on_error,
        **options,
    )

    async def on_call(msg):
        try:
            order = json.loads(msg.data)
            reply = {"result": str(await asyncio.to_thread(run, order["args"]))}
        except Exception as e:
            reply = {"error": {"code": "tool_failed", "text": f"{type(e).__name__}: {e}"}}
        await msg.respond(json.dumps(reply).encode())

    async def on_info(msg):  # a broker that started later asks for the definition
        info = {
            "type": "io.nats.micro.v1.info_response",
            "name": principal,
            "id": principal,
            "version": "1.0.0",
            "metadata": {"definition." + name: definition.decode()},
        }
        await msg.respond(json.dumps(info).encode())

    await nc.subscribe("tool.request." + name, queue=principal, cb=on_call)  # of several instances one gets each call
    await nc.subscribe("$SRV.INFO." + principal, cb=on_info)
    await announce()
    await nc.flush()
    print(f"serving {name} at {config['server']}; Ctrl-C ends it", flush=True)
    for s in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(s, stop.set)
    await stop.wait()
    if nc.is_connected:
        await nc.drain()  # the calls that run are answered
    else:
        await nc.close()


asyncio.run(main())
