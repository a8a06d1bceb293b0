"""ENGINE: what steps are made of, what they take, and what keeps them from taking in more."""

from vllm_obs.grafana.board import Board
from vllm_obs.grafana.row_engine_work import ENGINE_WORK
from vllm_obs.grafana.row_queues import QUEUES
from vllm_obs.grafana.row_step_time import STEP_TIME
from vllm_obs.grafana.row_verdict import VERDICT

ENGINE = Board(
    "vllm-obs-engine",
    "Engine",
    "What the engine's steps are made of, how long they take, and what keeps them from taking in more.",
    (VERDICT, STEP_TIME, ENGINE_WORK, QUEUES),
)
