-- What a model is: its columns, and what one replica needs. Options override the package.

CREATE OR REPLACE TEMPORARY MODEL minilm
  COMMENT 'sentence embeddings'
  LOCATION '.forebay/models/all-minilm-l6-v2'
  WITH ('cpus' = '2', 'max_batch_tokens' = '2048');

ALTER MODEL minilm SET ('max_replicas' = '1');

SELECT name, inputs, outputs, resources, comment FROM information_schema.models;
