-- Rank a few reviews by how near they are to a complaint: LATERAL over rows, the scalar form for
-- the question, which runs once.

CREATE OR REPLACE TEMPORARY MODEL minilm LOCATION '.forebay/models/all-minilm-l6-v2';

SELECT r.id, r.text, round(cosine_distance(p.embedding, q.embedding), 2) AS distance
FROM (VALUES
  (1, 'lovely colour, fits well'),
  (2, 'the parcel arrived broken'),
  (3, 'it came in three pieces')
) AS r(id, text)
CROSS JOIN LATERAL ml_predict(MODEL minilm, r.text) AS p
CROSS JOIN (SELECT ml_predict(MODEL minilm, 'damaged on delivery') AS embedding) AS q
ORDER BY distance;
