// Learns a byte-level BPE vocabulary from text files, so that a recipe needs no download: GPT-2's
// word pattern, all 256 bytes, then merges by count (Sennrich et al. 2016). The same vocabulary as
// Hugging Face's BpeTrainer learns of the same files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft::data::text {

struct BpeTrainOptions {
  // Special tokens, bytes and merges together; fewer if the text has no more pairs.
  std::int64_t vocab_size = 8192;
  std::int64_t min_count = 2;  // of a pair that is merged
  std::vector<std::string> specials = {"<|endoftext|>"};
  std::size_t max_bytes = std::size_t{1} << 30;  // of a file
};

// The text of a tokenizer.json, for write_file_atomic() and parse_tokenizer(). Deterministic: of
// equal counts the pair of lower ids is first. Words do not span lines. Memory is that of a file
// and of its distinct words; some 1 MB of new text a second, then a few seconds for thousands of
// merges. Throws Error(kInvalidArgument) for a vocabulary smaller than bytes and special tokens, a
// special token that is empty or occurs twice, or a file that can't be read, and Error(kCorrupt)
// for one that is too large.
std::string train_bpe(const std::vector<std::string>& files, const BpeTrainOptions& options = {});

}  // namespace weft::data::text
