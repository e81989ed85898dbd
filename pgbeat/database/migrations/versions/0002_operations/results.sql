-- Volatile, so that it reads what is committed by now: a store that waited for the cancelling
-- transaction has a snapshot from before it.
ALTER FUNCTION pgbeat.was_cancelled(text) VOLATILE;
