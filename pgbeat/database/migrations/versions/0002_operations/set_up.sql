-- What a file declares beside schedules: as in the file that wrote it last; NULL if none did.
ALTER TABLE pgbeat.lanes ADD COLUMN file_definition jsonb;
ALTER TABLE pgbeat.templates ADD COLUMN file_definition jsonb;
ALTER TABLE pgbeat.webhooks ADD COLUMN file_definition jsonb;
