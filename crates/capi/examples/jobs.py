"""Work that is done once: a queue of jobs, a map of results, and batches that change both or neither."""

import sys

from switchyard_store import Area

with Area(sys.argv[1], create_bytes=64 << 20) as area:
    jobs, results = area.queue("jobs"), area.map("results")
    for name in (b"cat.png", b"dog.png"):
        jobs.push(b"resize " + name)  # durable when it returns
    for position, job in jobs:
        print(position, job.decode())
        # The result is there if and only if the job is not. A crash before this line brings the job again.
        with area.batch() as batch:
            batch.put(results, job, b"done").acknowledge(jobs, position)
    print(dict(results))

    visits = area.tree("visits")
    visits.update({b"05-30T23:59": b"ada", b"05-31T08:00": b"ben", b"05-31T17:30": b"eve", b"06-01T00:00": b"ada"})
    for time, visitor in visits[b"05-31":b"06-01"]:
        print(time.decode(), visitor.decode())
