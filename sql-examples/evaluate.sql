-- Several models over one table in one query, each scored, beside what is known of them.

CREATE OR REPLACE TEMPORARY MODEL resnet LOCATION '.forebay/fixtures/images-resnet-files/package';
CREATE OR REPLACE TEMPORARY MODEL vit LOCATION '.forebay/fixtures/images-vit-files/package';

CREATE VIEW labelled AS
SELECT bytes, CASE WHEN size > 5000 THEN 'neutral' ELSE 'negative' END AS expected
FROM read_files('.forebay/images/good/*.png');

SELECT m.name, m.runtime, s.images, s.correct
FROM (
  SELECT 'resnet' AS name, count(*) AS images, sum(CAST(label = expected AS INT)) AS correct
  FROM ml_predict(TABLE labelled, MODEL resnet, DESCRIPTOR(bytes))
  UNION ALL
  SELECT 'vit', count(*), sum(CAST(label = expected AS INT))
  FROM ml_predict(TABLE labelled, MODEL vit, DESCRIPTOR(bytes))
) s JOIN information_schema.models m ON m.name = s.name
ORDER BY m.name;
