-- Counters outlive the rows that they count: metrics must not shrink when rows are pruned.

CREATE TABLE pgbeat.counters (
    namespace text NOT NULL,          -- '' for those of the whole database
    metric    text NOT NULL,          -- 'mark' for how far a log has been counted
    label     text NOT NULL,          -- a schedule, a task; of marks: the log
    kind      text NOT NULL,          -- an outcome, a state, a bucket of a histogram
    value     double precision NOT NULL,
    PRIMARY KEY (namespace, metric, label, kind)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
