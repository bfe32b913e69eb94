"""`python -m tests.simulation`."""
import argparse, gc, logging, sys, tempfile, time, os
from pathlib import Path
from .cluster import Cluster
from .marks import write_data
from .plan import draw_plan
import dataclasses

def main():
    p=argparse.ArgumentParser(); p.add_argument("--seeds",type=int,default=20); p.add_argument("--first",type=int,default=0); p.add_argument("-v",action="store_true"); p.add_argument("--none",action="store_true")
    a=p.parse_args()
    if os.environ.get("PYTHONHASHSEED")!="0":
        os.execve(sys.executable,[sys.executable,"-m","tests.simulation",*sys.argv[1:]],{**os.environ,"PYTHONHASHSEED":"0"})
    logging.disable(0 if a.v else logging.CRITICAL)
    base=Path(tempfile.mkdtemp(dir="/dev/shm")); data=base/"data.npz"; write_data(data)
    gc.disable()
    for seed in range(a.first,a.first+a.seeds):
        plan=draw_plan(seed)
        if a.none: plan=dataclasses.replace(plan,faults=())
        began=time.process_time()
        got=Cluster(plan,base,data).run()
        used=time.process_time()-began
        gc.collect()
        print(f"{seed} {plan.job}: {got.pushes} pushes, {got.faults} faults, {got.restores} restores, {got.virtual_s:.1f} s, {got.steps} steps, cpu {used:.2f}, {got.trace}", flush=True)
        if got.violations or a.v:
            print(plan); print("\n".join(got.log)); print("VIOLATION", *got.violations)
main()
