-- A model in WHERE: the cheap condition runs first, and the model sees what is left.

CREATE OR REPLACE TEMPORARY MODEL minilm LOCATION '.forebay/models/all-minilm-l6-v2'
  WITH ('max_batch_rows' = '16');

CREATE TABLE reviews AS SELECT * FROM (VALUES
  (1, 5, 'lovely colour, fits well'),
  (2, 1, 'the parcel arrived broken'),
  (3, 2, 'it came in three pieces'),
  (4, 2, 'too small for me'),
  (5, 1, NULL)
) AS r(id, stars, text);

SELECT id, text FROM reviews
WHERE stars < 3
  AND cosine_distance(ml_predict(MODEL minilm, text),
                      ml_predict(MODEL minilm, 'damaged on delivery')) < 0.75
ORDER BY id;
