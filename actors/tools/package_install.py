# Runs pip inside the sandbox. Arguments: the Unix socket of the egress proxy, then those of "pip install".
# A listener on loopback forwards each connection to the socket; pip uses it as its proxy.
import json
import runpy
import socket
import sys
import threading


def copy(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    try:
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def forward(listener, path):
    while True:
        client, _ = listener.accept()
        upstream = socket.socket(socket.AF_UNIX)
        try:
            upstream.connect(path)
        except OSError:
            client.close()
            continue
        for pair in ((client, upstream), (upstream, client)):
            threading.Thread(target=copy, args=pair, daemon=True).start()


# A wheel may depend on the URL of a source archive, which pip builds in spite of --only-binary: with a child process.
def deny_processes(event, args):
    if event in ("subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"):
        raise PermissionError("no program is started while packages are installed")


def print_report(path, verb):
    try:
        with open(path, encoding="utf-8") as f:
            items = json.load(f)["install"]
    except (OSError, ValueError, KeyError):
        return
    for item in items:
        meta, download = item["metadata"], item["download_info"]
        digest = download.get("archive_info", {}).get("hash", "no hash")
        line = f"{verb} {meta['name']}=={meta['version']} ({digest}) from {download['url']}"
        print(" ".join(line.split()))


listener = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=forward, args=(listener, sys.argv[1]), daemon=True).start()
sys.addaudithook(deny_processes)
report, arguments = "/tmp/report.json", sys.argv[2:]
verb = "would install" if "--dry-run" in arguments else "installed"
proxy = f"http://127.0.0.1:{listener.getsockname()[1]}"
sys.argv = ["pip", "install", "--proxy", proxy, "--report", report, *arguments]
code = 1
try:
    runpy.run_module("pip", run_name="__main__", alter_sys=True)
except SystemExit as e:
    code = e.code or 0
if code == 0:
    print_report(report, verb)
sys.exit(code)
