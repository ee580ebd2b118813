"""Run by gdb inside a process: records the first call of each function of a plan until the process gets a SIGUSR2.

The plan is a JSON file named by JOURNEY_PLAN. Its `functions` are the [address, name, file] of each function of the
program or library `binary`. A thread serves the call if it enters a source file in the folder `served_in`; if that is
"", all threads serve it. gdb creates the file `ready` when all breakpoints are set. At the end it writes [thread, name,
file] of each call to the file `hits`, in the order of the calls.
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
                # A thread that does not serve the call (such as one for HTTP) may call the function first. Then the
                # breakpoint is kept for the thread that serves it.
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


gdb.execute("set breakpoint always-inserted on")  # Otherwise every stop removes and re-inserts all breakpoints.
gdb.execute("handle SIGUSR2 stop print nopass", to_string=True)
with open(os.environ["JOURNEY_PLAN"]) as text:
    follow(json.load(text))
