-- Documents → chunks → vectors: each document becomes parts that the model can take whole, and the part
-- that answers a question is found with the document that it is from.

CREATE OR REPLACE TEMPORARY MODEL minilm LOCATION '.forebay/models/all-minilm-l6-v2';

CREATE TABLE documents AS SELECT * FROM (VALUES
  ('returns', 'Goods may be sent back within thirty days. They must be unused and in their box. ' ||
              'We pay for the parcel if the goods are damaged. The money is returned to the card ' ||
              'that was charged, which takes about five working days.'),
  ('privacy', 'We keep your name and address for as long as the law asks for. Nobody else gets them, ' ||
              'except the carrier who brings the parcel. You may ask what we know about you, and we ' ||
              'answer within a month.'),
  ('care', 'Wash wool by hand in cold water. Do not wring it. Dry it flat and out of the sun, or it ' ||
           'loses its shape and its colours fade.')
) AS d(name, text);

CREATE TABLE chunks (name VARCHAR, chunk VARCHAR, embedding FLOAT[384]);

INSERT INTO chunks
SELECT name, chunk, embedding
FROM ml_predict(
  (SELECT name, unnest(text_chunk(text, 32, 8, 'minilm')) AS chunk FROM documents),
  MODEL minilm, DESCRIPTOR(chunk));

SELECT name, chunk, round(1 - cosine_distance(embedding, question), 2) AS similarity
FROM chunks
CROSS JOIN (SELECT ml_predict(MODEL minilm, 'how do I launder a pullover?') AS question)
ORDER BY similarity DESC
LIMIT 2;
