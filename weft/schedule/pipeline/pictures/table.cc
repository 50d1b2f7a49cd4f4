#include "weft/schedule/pipeline/pictures/pictures.h"

#include <algorithm>
#include <cmath>

#include "weft/schedule/pipeline/pictures/internal/picture.h"

namespace weft::schedule::pipeline {
namespace {

using internal::Picture;

constexpr int kColumns = 120;
constexpr int kName = 9;

std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

// A rank's line, with one cell for each unit of time. An action fills its cells with its label and
// dashes.
using Cells = std::vector<std::string>;

Cells cells_of(const Picture& picture, std::size_t rank, std::size_t columns, std::size_t width) {
  Cells cells(columns, padded(".", width));
  const auto& spans = picture.timing.spans[rank];
  const auto column = [&](double time) {
    return static_cast<std::size_t>(std::lround(time / picture.unit));
  };
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const Action& action = picture.schedule.actions[rank][i];
    const std::size_t begin = column(spans[i].begin), end = column(spans[i].end);
    std::string text =
        internal::letter_of(action.work) + internal::label_of(picture.schedule.request, action);
    text.resize(std::max(text.size(), (end - begin) * width - 1), '-');
    text += ' ';
    for (std::size_t c = begin; c < end; ++c)
      cells[c] = padded(text.substr((c - begin) * width, width), width);
  }
  return cells;
}

std::string rtrim(std::string text) {
  text.erase(text.find_last_not_of(' ') + 1);
  return text + "\n";
}

std::string legend(const Request& q) {
  std::string text = "F forward";
  if (q.algorithm != Algorithm::kForwardOnly)
    text += splits_backward(q.algorithm) ? ", I backward of the input, W of the weights"
                                         : ", B backward";
  if (q.algorithm == Algorithm::kAutomatic) text += ", B both";
  text += ", with the micro-batch";
  return text + (q.virtual_stages > 1 ? " and the stage" : "") + "; . idle\n";
}

}  // namespace

std::string render_text(const Request& request) {
  const Picture picture = internal::picture_of(request);
  std::size_t width = 2;
  for (const auto& actions : picture.schedule.actions) {
    for (const Action& action : actions)
      width = std::max(width, internal::label_of(request, action).size() + 2);
  }
  const auto columns =
      static_cast<std::size_t>(std::lround(picture.timing.makespan / picture.unit));
  std::vector<Cells> cells;
  for (std::size_t rank = 0; rank < picture.held.size(); ++rank)
    cells.push_back(cells_of(picture, rank, columns, width));

  std::string text = heading(request) + "\n" + summary(request) + "\n" + legend(request);
  const std::size_t fit = std::max<std::size_t>(1, (kColumns - kName) / width);
  for (std::size_t first = 0; first < columns; first += fit) {
    const std::size_t last = std::min(columns, first + fit);
    std::string head = padded("time", kName);
    for (std::size_t c = first; c < last; ++c)
      head +=
          padded(c % 5 == 0 ? internal::decimal(static_cast<double>(c) * picture.unit) : "", width);
    text += "\n" + rtrim(head);
    for (std::size_t rank = 0; rank < cells.size(); ++rank) {
      std::string line = padded("rank " + std::to_string(rank), kName);
      for (std::size_t c = first; c < last; ++c) line += cells[rank][c];
      text += rtrim(line);
    }
  }
  text += "\n";
  for (std::size_t rank = 0; rank < cells.size(); ++rank) {
    text += padded("rank " + std::to_string(rank), kName) +
            internal::percent(picture.timing.idle[rank]) + " idle";
    text += request.algorithm == Algorithm::kForwardOnly
                ? "\n"
                : ", holds " + std::to_string(picture.held[rank]) + "\n";
  }
  return text;
}

}  // namespace weft::schedule::pipeline
