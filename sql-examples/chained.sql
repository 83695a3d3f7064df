-- Two models in one query: an image becomes a class, and the class's name a vector, by which the
-- classes are ordered.

CREATE OR REPLACE TEMPORARY MODEL classifier LOCATION '.forebay/fixtures/images-resnet-files/package';
CREATE OR REPLACE TEMPORARY MODEL minilm LOCATION '.forebay/models/all-minilm-l6-v2';

SELECT label, count(*) AS images,
       round(min(cosine_distance(embedding, ml_predict(MODEL minilm, 'larger than'))), 2) AS distance
FROM ml_predict(
  (SELECT label FROM ml_predict((SELECT bytes FROM read_files('.forebay/images/good/*.png')),
                                MODEL classifier, DESCRIPTOR(bytes))),
  MODEL minilm, DESCRIPTOR(label))
GROUP BY label ORDER BY distance;
