// The commands and answers of a driven peer program: one flat JSON object per line
// (bench/README.md). nlohmann-json is header-only, so a peer links only the library that it
// measures.
#pragma once

#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace weft::bench {

// The command cannot be executed. Every rank detects this by itself, so no rank is left waiting in
// a collective.
struct BadCommand : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Command {
  // all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, barrier, ping_pong
  std::string op;
  // Size of the whole vector: the output of all_gather, the input of reduce_scatter.
  std::size_t bytes = 0;
  int iterations = 10;   // timed samples
  int warmup = 2;        // samples before them, which are dropped
  int block = 1;         // calls in a sample; a sample is the mean of its calls
  bool rewrite = false;  // each rank writes its vector, then a barrier, before each timed call
};

struct Answer {
  std::string impl;
  int ranks = 0;
  bool verified = false;
  std::vector<double> us;  // one value per sample; empty unless verified
};

// Returns std::nullopt for {"quit":true}. Throws BadCommand for an unknown key, operation or dtype.
// Without "block", small vectors are timed in blocks of up to 100 calls, so that the barrier before
// a sample does not affect it.
std::optional<Command> parse_command(const std::string& line);

// One JSON line without its newline.
std::string to_json(const Command& command, const Answer& answer);
std::string error_to_json(const std::string& impl, const std::string& message);

// Initial value of element `index` on this rank. Never zero, since some processors drop stores of
// zeros over zeros. Sums over fewer than 10,000 ranks are exact in f32.
inline float element(int rank, std::size_t index) {
  return static_cast<float>(1 + index % 509 + static_cast<std::size_t>(rank));
}

// The sum of element(r, index) over ranks 0 … ranks-1.
inline float element_sum(int ranks, std::size_t index) {
  const int sum_of_ranks = ranks * (ranks - 1) / 2;
  return static_cast<float>(ranks) * element(0, index) + static_cast<float>(sum_of_ranks);
}

}  // namespace weft::bench
