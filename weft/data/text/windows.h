// Windows: cuts the token stream into windows of T tokens, without regard to documents. Most
// language models are trained on such rows.
//
//   tokens   0 1 2 3 4 5 6 7 8 9        T = 4, kAligned
//   row 0    0 1 2 3 -> 1 2 3 4         every token but the last is an input once,
//   row 1    4 5 6 7 -> 5 6 7 8         every token but the first is a target once
//   row 2    8 . . . -> 9               the last row is padded
#pragma once

#include "weft/data/text/rows.h"
#include "weft/data/text/token_file.h"

namespace weft::data::text {

struct WindowOptions {
  std::int64_t length = 1024;  // T, the positions of a row.
  Range range;                 // Range of the file's tokens. Empty: all.
  enum class Start {
    kAligned,  // The same windows in each epoch, for evaluation and exact counts.
    // For training: the windows of an epoch are shifted by a random number of tokens, 0 to T-1. An
    // epoch leaves out up to 2T-1 tokens at the ends of the range.
    kShifted,
  };
  Start start = Start::kAligned;
  std::uint64_t seed = 0;  // Seed of kShifted.
};

class Windows : public Rows {
 public:
  // Throws Error(kInvalidArgument) for a length below 1, a range outside the file, and a range that
  // is too short: kAligned needs two tokens, kShifted 2T.
  Windows(TokenFile file, WindowOptions options);

  std::int64_t size() const override { return size_; }
  std::int64_t length() const override { return options_.length; }
  void read(std::int64_t row, std::int64_t epoch, const RowSpans& out) const override;

 private:
  TokenFile file_;
  WindowOptions options_;
  std::int64_t size_ = 0;
};

}  // namespace weft::data::text
