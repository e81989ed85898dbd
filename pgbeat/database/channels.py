"""Names the channels of NOTIFY, and describes the payload of each."""

#: To the leader: "" when schedules or calendars change, `jobs` and `deliveries` when there are new
#: ones of those.
SCHEDULES = "pgbeat_schedules"
#: To the leader and to direct requests: `namespace/lane`, when a lane has a slot or a job more.
LANES = "pgbeat_lanes"
#: To every consumer: `bindings` when they change, `delayed` when a message is due within seconds.
BROKER = "pgbeat_broker"
#: To a process that waits for results, the task that has one; its id follows.
RESULTS = "pgbeat_result_"
#: To a queue's consumers, before its name, when it is deleted.
GONE = "gone "


def of_queue(queue: int) -> str:
    """Returns the channel of a queue (its id), to its consumers.

    While they wait, "" is sent when messages are put, `again` when earlier ones come back or the
    queue is resumed. `gone` and its name is sent when it is deleted.
    """
    return f"pgbeat_queue_{queue}"
