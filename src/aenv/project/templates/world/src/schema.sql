-- The tables of the world. Constraints and triggers are its rules: a write that breaks one is refused, and the agent
-- reads why. Each table has a primary key of one column. The initial rows are in private/scenario.json.

CREATE TABLE people (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    team TEXT NOT NULL CHECK (team IN ('accounts', 'hardware', 'network'))
);

CREATE TABLE tickets (
    id INTEGER PRIMARY KEY,
    title TEXT NOT NULL CHECK (length(title) BETWEEN 3 AND 100),
    team TEXT NOT NULL CHECK (team IN ('accounts', 'hardware', 'network')),
    status TEXT NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'waiting', 'closed')),
    assignee INTEGER REFERENCES people (id)
);

CREATE TABLE comments (
    id INTEGER PRIMARY KEY,
    ticket INTEGER NOT NULL REFERENCES tickets (id),
    text TEXT NOT NULL CHECK (length(text) > 0)
);

CREATE TRIGGER assignees_are_of_the_team BEFORE UPDATE OF assignee, team ON tickets
WHEN NEW.assignee IS NOT NULL AND NEW.team <> (SELECT team FROM people WHERE id = NEW.assignee)
BEGIN SELECT RAISE(ABORT, 'the assignee is not a member of the team of the ticket'); END;

CREATE TRIGGER closing_needs_a_comment BEFORE UPDATE OF status ON tickets
WHEN NEW.status = 'closed' AND NOT EXISTS (SELECT 1 FROM comments WHERE ticket = NEW.id)
BEGIN SELECT RAISE(ABORT, 'a ticket is closed only after a comment'); END;
