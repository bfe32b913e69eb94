"""A run whose files are in a store of objects: each process works in a folder of its own, and what matters is uploaded.

RUN/job.yaml, summary.json, model.safetensors, ...   as in a run folder, replaced when they change
RUN/events/000001.jsonl, ...                         pieces of the event log, in order; each is written once
RUN/snapshots/...                                    see `dbelief.checkpoint.object_sets`
RUN/holders/00000001.json, ...                       who writes here: the highest number
"""
