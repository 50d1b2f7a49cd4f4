// Learns a byte-level BPE vocabulary from text files, so that a recipe needs no download. It uses
// GPT-2's word pattern, all 256 bytes, then merges by count (Sennrich et al. 2016). The vocabulary
// equals that of Hugging Face's BpeTrainer on the same files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft::data::text {

struct BpeTrainOptions {
  // Number of special tokens, bytes and merges. Smaller if the text has no more pairs.
  std::int64_t vocab_size = 8192;
  std::int64_t min_count = 2;  // Smallest count of a pair that is merged.
  std::vector<std::string> specials = {"<|endoftext|>"};
  std::size_t max_bytes = std::size_t{1} << 30;  // Largest size of a file.
};

// Returns the text of a tokenizer.json, for write_file_atomic() and parse_tokenizer().
// Deterministic: among pairs of equal count, the pair with the lower ids is merged first. Words do
// not span lines. Memory use is that of one file and of all distinct words. Takes about a second
// per MB of new text, then a few seconds for thousands of merges. Throws Error(kInvalidArgument)
// for a vocabulary smaller than bytes and special tokens, for a special token that is empty, occurs
// twice, has one character or is not UTF-8, and for a file that cannot be read. No merge gives a
// special token. Throws Error(kCorrupt) for a file that is too
// large, and Error(kBadConfig) for one that is no text, as check_text_file() (tokenize_file.h).
std::string train_bpe(const std::vector<std::string>& files, const BpeTrainOptions& options = {});

}  // namespace weft::data::text
