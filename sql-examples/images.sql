-- Files → classes: photos are read, decoded, resized and normalized by the query, and a file that is no
-- image is named with the reason.

CREATE OR REPLACE TEMPORARY MODEL classifier LOCATION '.forebay/fixtures/images-resnet-files/package'
  WITH ('on_error' = 'route');

CREATE VIEW photos AS
SELECT url, bytes FROM read_files('.forebay/images/good/*.png')
UNION ALL
SELECT url, bytes FROM read_files('.forebay/images/bad/*.png');

SELECT split_part(url, '/', -1) AS file, label, round(score, 3) AS score, _error['message'] AS problem
FROM ml_predict(TABLE photos, MODEL classifier, DESCRIPTOR(bytes))
ORDER BY file;
