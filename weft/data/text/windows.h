// Windows of T tokens cut out of a stream, whatever documents begin and end in them: what most
// language models are trained on.
//
//   tokens   0 1 2 3 4 5 6 7 8 9        T = 4, kAligned
//   row 0    0 1 2 3 -> 1 2 3 4         every token but the last is an input once,
//   row 1    4 5 6 7 -> 5 6 7 8         every token but the first a target once
//   row 2    8 . . . -> 9               the last row is padded
#pragma once

#include "weft/data/text/rows.h"
#include "weft/data/text/token_file.h"

namespace weft::data::text {

struct WindowOptions {
  std::int64_t length = 1024;  // T
  Range range;                 // of the file's tokens; empty: all
  enum class Start {
    kAligned,  // the same windows in each epoch: evaluation, exact counts
    // moved by 0 to T-1 tokens, drawn for each epoch: training. Up to 2T-1 tokens at the ends are
    // left out of an epoch.
    kShifted,
  };
  Start start = Start::kAligned;
  std::uint64_t seed = 0;  // of kShifted
};

class Windows : public Rows {
 public:
  // Throws Error(kInvalidArgument) for a length below 1, a range outside the file, or one too short
  // for a row (kAligned: two tokens, kShifted: 2T).
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
