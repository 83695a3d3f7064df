-- The main job: embed a table of 8,000 definitions, then search them by meaning.
-- Run by `forebay demo`, with its own copies of the package and the table.

CREATE OR REPLACE TEMPORARY MODEL minilm LOCATION '.forebay/models/all-minilm-l6-v2';

CREATE EXTERNAL TABLE wordnet STORED AS PARQUET LOCATION 'sql-examples/data/wordnet.parquet';

CREATE TABLE embedded (word VARCHAR, gloss VARCHAR, embedding FLOAT[384]);

INSERT INTO embedded
SELECT word, gloss, embedding FROM ml_predict(TABLE wordnet, MODEL minilm, DESCRIPTOR(gloss));

-- Which words mean "a small house where people keep their tools"?
SELECT word, gloss, round(1 - cosine_distance(embedding, question), 3) AS similarity
FROM embedded
CROSS JOIN (
  SELECT ml_predict(MODEL minilm, 'a small house where people keep their tools') AS question
)
ORDER BY similarity DESC
LIMIT 10;
