import sys, logging, tempfile, collections, time
from pathlib import Path
from tests.simulation.cluster import Cluster
from tests.simulation.plan import draw_plan
from tests.simulation.seeds import scratch
from tests.conformance.recorder import Recorder
from tests.conformance.projection import traces_of
from tests.conformance.acceptor import Acceptor
logging.disable(logging.CRITICAL)
acc=Acceptor(Path(tempfile.mkdtemp()))
SKIP={"hogwild-sgd","hogwild-easgd","sandblaster"}
with scratch() as folder:
    for seed in map(int,sys.argv[1:]):
        plan=draw_plan(seed)
        if plan.job in SKIP: continue
        c=Cluster(plan,folder,folder/"data.npz")
        r=Recorder(c._scheduler)
        with r.recording():
            out=c.run()
        t0=time.time(); n=0
        for t in traces_of(r.log):
            n+=1
            v=acc.judge(t.events)
            if not v.accepted:
                print("REJECTED seed",seed,plan.job,"segment",t.segment,t.pusher,"at",v.position,"of",len(t.events),v.reason)
                for i in range(max(0,v.position-25),min(len(t.events),v.position+3)): print("  ",i,t.events[i])
                break
        else: print("ok", seed, plan.job, n, "traces", f"{time.time()-t0:.1f}", out.violations)
