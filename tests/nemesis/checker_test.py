#!/usr/bin/env python3
"""Histories that the checker must refuse, and histories that it must permit."""
import os
import random
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from checker import NEVER, Loss, Request, Volume  # noqa: E402


def write(id, start, end=NEVER, ok=None, fua=False, client="a", count=1, kind="write", gateway="g", first=0):
    return Request(client, client, kind, first, count, id, start, end, end < NEVER if ok is None else ok, fua, (), gateway, 1)


def read(id, start, end, client="a", first=0):
    return Request(client, client, "read", first, 1, 0, start, end, True, False, ((first, 1, id),), "g", 1)


def flush(start, end, ok=True, client="a", gateway="g"):
    return Request(client, client, "flush", 0, 0, 0, start, end, ok, False, (), gateway, 1)


def judge(*requests, losses=(), media=False):
    losses = [Loss(0, 8, begin, end, "test") for begin, end in losses]
    return [it.kind for it in Volume("v", list(requests), losses, media).check()]


class Refused(unittest.TestCase):
    def test_a_lost_write(self):
        self.assertEqual(judge(write(1, 1, 2), read(0, 3, 4)), ["order"])

    def test_a_stale_read(self):
        self.assertEqual(judge(write(1, 1, 2), write(2, 3, 4), read(1, 5, 6)), ["order"])

    def test_a_read_that_goes_back(self):
        # The write is under way, and the second read does not see what the first one saw.
        self.assertEqual(judge(write(1, 1, 20), read(1, 2, 3), read(0, 4, 5)), ["order"])

    def test_a_read_of_the_future(self):
        self.assertEqual(judge(read(1, 1, 2), write(1, 3, 4)), ["invented"])

    def test_a_value_of_nobody_and_a_torn_sector(self):
        self.assertEqual(judge(read(7, 1, 2)), ["invented"])
        self.assertEqual(judge(write(1, 1, 2), read(-1, 3, 4)), ["invented"])

    def test_another_place_s_value(self):
        self.assertEqual(judge(write(1, 1, 2, first=3), read(1, 3, 4)), ["invented"])

    def test_an_unanswered_write_that_comes_again(self):
        # It was seen, overwritten, and is there again: it was executed twice.
        self.assertEqual(judge(write(1, 1), read(1, 2, 3), write(2, 4, 5), read(2, 6, 7), read(1, 8, 9)), ["order"])

    def test_a_failed_write_that_comes_again(self):
        self.assertEqual(judge(write(1, 1, 2, ok=False), read(1, 3, 4), write(2, 5, 6), read(1, 8, 9)), ["order"])

    def test_a_flushed_write_is_lost(self):
        self.assertEqual(judge(write(1, 1, 2), flush(3, 4), read(0, 9, 10), losses=[(5, 6)]), ["stale"])

    def test_a_flushed_write_goes_back_to_an_older_one(self):
        self.assertEqual(judge(write(1, 1, 2), write(2, 3, 4), flush(5, 6), read(1, 9, 10), losses=[(7, 8)]), ["stale"])

    def test_a_durable_write_is_lost(self):
        self.assertEqual(judge(write(1, 1, 2, fua=True), read(0, 9, 10), losses=[(5, 6)]), ["stale"])
        self.assertEqual(judge(write(1, 1, 2), read(0, 9, 10), losses=[(5, 6)], media=True), ["stale"])

    def test_what_the_loss_left_changes(self):
        found = [write(1, 1, 2), write(2, 3, 4), read(1, 9, 10), read(2, 11, 12)]
        self.assertEqual(judge(*found, losses=[(5, 6)]), ["stale"])

    def test_a_flush_lies(self):
        self.assertEqual(judge(write(1, 1, 2), flush(9, 10), read(0, 11, 12), losses=[(5, 6)]), ["untold"])

    def test_a_flush_of_another_client_lies(self):
        history = [write(1, 1, 2), flush(3, 3, client="b"), write(2, 4, 4), flush(9, 10, ok=False), flush(11, 12, client="b"), read(1, 13, 14)]
        self.assertEqual(judge(*history, losses=[(5, 6)]), ["untold"])

    def test_a_write_across_a_loss_is_acknowledged_flushed_and_gone(self):
        history = [write(1, 1, 2), flush(3, 3), write(2, 4, 8), flush(9, 10), read(1, 11, 12)]
        self.assertEqual(judge(*history, losses=[(5, 6)]), ["untold"])

    def test_a_flush_after_the_loss_makes_what_was_left_durable(self):
        history = [write(1, 1, 2), flush(7, 7, ok=False), read(0, 7, 8), write(2, 9, 10), flush(11, 12), read(0, 17, 18)]
        self.assertEqual(judge(*history, losses=[(5, 6), (15, 16)]), ["stale"])

    def test_zeros_come_back_after_a_write(self):
        self.assertEqual(judge(write(0, 1, 2, kind="zero"), write(2, 3, 4), read(0, 5, 6)), ["order"])


class Permitted(unittest.TestCase):
    def test_concurrent_writes_in_any_order(self):
        self.assertEqual(judge(write(1, 1, 5), write(2, 2, 6), read(1, 7, 8)), [])
        self.assertEqual(judge(write(1, 1, 5), write(2, 2, 6), read(2, 7, 8)), [])

    def test_an_unanswered_write_happens_late_or_never(self):
        self.assertEqual(judge(write(1, 1), read(0, 2, 3), write(2, 4, 5), read(2, 6, 7), read(1, 8, 9)), [])
        self.assertEqual(judge(write(1, 1), read(0, 2, 3)), [])

    def test_an_unflushed_write_is_lost_and_told(self):
        for found in (0, 1):
            history = [write(1, 1, 2), flush(7, 8, ok=False), flush(9, 10), read(found, 11, 12)]
            self.assertEqual(judge(*history, losses=[(5, 6)]), [])

    def test_a_flush_that_was_sent_later_tells_first(self):
        history = [write(1, 1, 2), flush(7, 20), flush(8, 9, ok=False), read(0, 21, 22)]
        self.assertEqual(judge(*history, losses=[(5, 6)]), [])

    def test_a_gateway_that_is_gone_tells_nothing(self):
        self.assertEqual(judge(write(1, 1, 2), flush(9, 10, gateway="h"), read(0, 11, 12), losses=[(5, 6)]), [])

    def test_who_comes_after_the_loss_need_not_be_told(self):
        self.assertEqual(judge(write(1, 1, 2), flush(7, 8, ok=False), flush(9, 10, client="b"), read(0, 11, 12), losses=[(5, 6)]), [])

    def test_a_later_write_than_the_flushed_one_may_be_left(self):
        self.assertEqual(judge(write(1, 1, 2), flush(3, 3), write(2, 4, 5), read(2, 9, 10), losses=[(7, 8)]), [])

    def test_a_second_loss_may_leave_what_the_first_one_could(self):
        history = [write(1, 1, 2), write(2, 3, 4), read(2, 7, 8), flush(9, 9, ok=False), read(1, 17, 18)]
        self.assertEqual(judge(*history, losses=[(5, 6), (15, 16)]), [])

    def test_a_read_across_a_loss_is_not_judged(self):
        self.assertEqual(judge(write(1, 1, 2), write(2, 3, 4), read(1, 4, 7), losses=[(5, 6)]), [])

    def test_a_write_across_a_loss(self):
        self.assertEqual(judge(write(1, 1, 2), write(2, 4, 8), read(2, 11, 12), losses=[(5, 6)]), [])
        self.assertEqual(judge(write(1, 1, 2), write(2, 4, 8), flush(9, 10, ok=False), read(1, 11, 12), losses=[(5, 6)]), [])

    def test_zeros_of_several_writes(self):
        zeros = [write(9, 1, 2, kind="zero"), write(1, 3, 4), write(10, 5, 6, kind="zero")]
        self.assertEqual(judge(*zeros, read(0, 7, 8)), [])

    def test_zeros_that_a_loss_left(self):
        history = [write(1, 1, 2), write(9, 3, 4, kind="zero"), flush(5, 6), write(2, 7, 8), flush(15, 16, ok=False), read(0, 17, 18)]
        self.assertEqual(judge(*history, losses=[(11, 12)]), [])

    def test_every_history_of_a_real_register(self):
        for seed in range(300):
            self.assertEqual(judge(*self.history(random.Random(seed))), [], seed)

    @staticmethod
    def history(rng):
        """Requests that take effect at one moment between their start and their end, or later if they are not answered."""
        moments, requests = [], []
        for id in range(1, 30):
            start = rng.randrange(1000)
            end = start + rng.randrange(1, 60)
            answered = rng.random() < 0.8
            kind = rng.choice(("read", "read", "write", "zero"))
            moments.append((rng.randrange(start, end if answered or kind == "read" else 2000), id, kind, start, end if answered or kind == "read" else NEVER))
        value = 0
        for _, id, kind, start, end in sorted(moments):
            if kind == "read":
                requests.append(read(value, start, end, client=str(id)))
            else:
                value = id if kind == "write" else 0
                requests.append(write(id, start, end, kind=kind, client=str(id)))
        return requests


class Searched(unittest.TestCase):
    """The rule of groups against a search for an order, on small histories."""

    def test_the_same_verdict_as_a_search(self):
        verdicts = set()
        for seed in range(3000):
            rng = random.Random(seed)
            requests = []
            for id in range(1, rng.randrange(3, 6)):
                start = rng.randrange(12)
                requests.append(write(id, start, start + rng.randrange(1, 6), client=str(id)))
            for at in range(rng.randrange(1, 4)):
                start = rng.randrange(18)
                requests.append(read(rng.randrange(0, 3), start, start + rng.randrange(1, 6), client="r" + str(at)))
            wanted, found = self.has_order(requests), not judge(*requests)
            self.assertEqual(wanted, found, seed)
            verdicts.add(wanted)
        self.assertEqual(verdicts, {True, False})

    def has_order(self, requests, value=0):
        if not requests:
            return True
        first = min(it.end for it in requests)
        for at, it in enumerate(requests):
            if it.start > first or it.kind == "read" and it.blocks[0][2] != value:
                continue
            if self.has_order(requests[:at] + requests[at + 1:], it.id if it.kind == "write" else value):
                return True
        return False


if __name__ == "__main__":
    unittest.main()
