-- What is sent: the event itself, signed, or a message in words.
ALTER TABLE pgbeat.webhooks
    ADD COLUMN format text NOT NULL DEFAULT 'standard',
    ADD CONSTRAINT webhooks_format CHECK (
        format IN ('standard', 'slack', 'teams', 'discord', 'pagerduty', 'opsgenie'));
