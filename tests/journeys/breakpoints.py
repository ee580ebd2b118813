"""Run by gdb inside of a process: notes which functions of a plan are called, each once, until a SIGUSR2.

The plan (JSON, named by JOURNEY_PLAN) has `binary`, its `functions` as [address, name, file], `served_in`, the folder
that only threads which serve the call enter ("": all do), and two files: `ready` is made when all breakpoints stand,
`hits` gets [thread, name, file] in the order of the first calls.
"""

import json
import os

import gdb


def load_address(binary):
    with open(f"/proc/{gdb.selected_inferior().pid}/maps") as maps:
        return next(int(line.split("-")[0], 16) for line in maps if line.rstrip().endswith(binary))


def follow(plan):
    functions, hits, ended, serving = {}, [], [], set()

    def on_stop(event):
        if isinstance(event, gdb.BreakpointEvent):
            thread = gdb.selected_thread().num
            for point in event.breakpoints:
                name, file = functions[point.number]
                if file.startswith(plan["served_in"]):
                    serving.add(thread)
                hits.append([thread, name, file])
                # What another thread calls first, as the census does, is still to be noted for the call itself.
                point.enabled = thread not in serving
        elif isinstance(event, gdb.SignalEvent) and event.stop_signal == "SIGUSR2":
            ended.append(event)

    start = load_address(plan["binary"])
    for address, name, file in plan["functions"]:
        point = gdb.Breakpoint(f"*{start + address:#x}", internal=True)
        point.silent = True
        functions[point.number] = name, file
    gdb.events.stop.connect(on_stop)
    open(plan["ready"], "w").close()
    while not ended:
        gdb.execute("continue", to_string=True)
    with open(plan["hits"], "w") as out:
        json.dump(hits, out)
    gdb.execute("detach", to_string=True)


gdb.execute("set breakpoint always-inserted on")  # Else every stop takes all of them out and puts them in again.
gdb.execute("handle SIGUSR2 stop print nopass", to_string=True)
with open(os.environ["JOURNEY_PLAN"]) as text:
    follow(json.load(text))
