-- Sums that outlive the rows that they were counted from: metrics must not shrink when rows are
-- pruned.

CREATE TABLE pgbeat.counters (
    name  text PRIMARY KEY,
    value bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100);

CREATE TABLE pgbeat.tallies (
    namespace text NOT NULL,
    metric    text NOT NULL,
    label     text NOT NULL,          -- a schedule, a task; of marks: how far it is added up
    kind      text NOT NULL,          -- an outcome, a state, a bucket of a histogram
    value     double precision NOT NULL,
    PRIMARY KEY (namespace, metric, label, kind)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
