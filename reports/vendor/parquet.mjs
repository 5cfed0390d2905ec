// What `parquet.min.js` is bundled from; the command is in README.md.
export { parquetMetadata, parquetRead } from "hyparquet";
export { decompress } from "fzstd";
export { sha256 } from "@noble/hashes/sha2.js";
