-- For the gauge of dead letters that are open: counted without reading them.
CREATE INDEX dead_letters_endpoint ON laneway_control.dead_letters (endpoint_id, reason) WHERE state = 'open';
