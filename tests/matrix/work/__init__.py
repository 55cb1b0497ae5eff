"""The workloads that cases start: each is a program as a user would write it."""
import os

WORK = os.path.dirname(os.path.abspath(__file__))
