#include "weft/schedule/pictures/pictures.h"

#include <algorithm>
#include <vector>

#include "weft/base/text/words.h"
#include "weft/schedule/pictures/internal/picture.h"

namespace weft::schedule {
namespace {

using internal::Arrow;
using internal::Picture;

constexpr int kColumns = 120;

// What one rank does in one round. Line i shows its i-th send and its i-th receive.
using Cell = std::vector<std::string>;

// Counts characters, not bytes.
int width(const std::string& text) { return static_cast<int>(num_characters(text)); }
std::string padded(const std::string& text, int to) {
  return text + std::string(std::max(0, to - width(text)), ' ');
}

std::string named(const Arrow& arrow) { return arrow.label.empty() ? "" : ":" + arrow.label; }

Cell cell_of(const Picture& picture, int round, int rank) {
  Cell sent;
  Cell received;
  for (const Arrow& arrow : picture.arrows) {
    if (arrow.round != round) continue;
    if (arrow.source == rank && !arrow.reads)
      sent.push_back("→" + std::to_string(arrow.target) + named(arrow));
    if (arrow.target == rank)
      received.push_back("←" + std::to_string(arrow.source) + named(arrow) +
                         (arrow.reduces ? "+" : ""));
  }
  int sent_width = 0;
  for (const std::string& text : sent) sent_width = std::max(sent_width, width(text) + 1);
  Cell cell;
  for (std::size_t i = 0; i < std::max(sent.size(), received.size()); ++i) {
    const std::string first = i < sent.size() ? sent[i] : "";
    cell.push_back(i < received.size() ? padded(first, sent_width) + received[i] : first);
  }
  return cell;
}

std::string legend(const Picture& picture) {
  if (picture.what.empty()) return "→1 tells rank 1, ←2 hears from rank 2\n";
  const bool reads = !picture.meetings.empty();
  std::string text = reads ? "" : "→1:2 sends " + picture.what + " 2 to rank 1, ";
  text += std::string("←1:2 ") + (reads ? "reads " : "receives ") + picture.what + " 2 from rank 1";
  const bool adds = std::any_of(picture.arrows.begin(), picture.arrows.end(),
                                [](const Arrow& arrow) { return arrow.reduces; });
  return text + (adds ? ", + and adds it to what is there\n" : "\n");
}

std::string round_name(const Picture& picture, int round) {
  const bool meets =
      std::find(picture.meetings.begin(), picture.meetings.end(), round) != picture.meetings.end();
  return std::to_string(round) + (meets ? " meet" : "");
}

std::string rtrim(std::string text) {
  text.erase(text.find_last_not_of(' ') + 1);
  return text + "\n";
}

// One table: ranks [first, last).
std::string table(const std::vector<std::vector<Cell>>& cells, const Picture& picture, int first,
                  int last, int column) {
  constexpr int kName = 9;
  std::string head = padded("round", kName);
  for (int rank = first; rank < last; ++rank)
    head += padded("rank " + std::to_string(rank), column);
  std::string text = "\n" + rtrim(head);
  for (int round = 1; round <= picture.cost.rounds; ++round) {
    std::size_t lines = 1;
    for (int rank = first; rank < last; ++rank)
      lines = std::max(lines, cells[round - 1][rank].size());
    for (std::size_t line = 0; line < lines; ++line) {
      std::string row = padded(line == 0 ? round_name(picture, round) : "", kName);
      for (int rank = first; rank < last; ++rank) {
        const Cell& cell = cells[round - 1][rank];
        row += padded(line < cell.size() ? cell[line] : "", column);
      }
      text += rtrim(row);
    }
  }
  return text;
}

}  // namespace

std::string link_name(const Topology& topology, int level) {
  const bool inside = level + 1 == topology.num_levels();
  return inside ? std::string("inside a ") + noun(topology.level(level).scope)
                : std::string("between ") + noun(topology.level(level + 1).scope) + "s";
}

std::string render_text(const Request& request) {
  const Picture picture = internal::picture_of(request);
  const int world = picture.request.world;
  std::vector<std::vector<Cell>> cells(picture.cost.rounds, std::vector<Cell>(world));
  int column = width("rank " + std::to_string(world)) + 2;
  for (int round = 1; round <= picture.cost.rounds; ++round) {
    for (int rank = 0; rank < world; ++rank) {
      Cell& cell = cells[round - 1][rank];
      cell = cell_of(picture, round, rank);
      for (const std::string& line : cell) column = std::max(column, width(line) + 2);
    }
  }
  std::string text = internal::heading(picture) + "\n" + internal::summary(picture) + "\n";
  if (!picture.traffic.empty()) text += internal::levels_line(picture) + "\n";
  if (picture.cost.rounds == 0) return text;
  if (!picture.arrows.empty()) text += legend(picture);
  const int fit = std::max(1, (kColumns - 9) / column);
  for (int first = 0; first < world; first += fit)
    text += table(cells, picture, first, std::min(world, first + fit), column);
  return text;
}

}  // namespace weft::schedule
