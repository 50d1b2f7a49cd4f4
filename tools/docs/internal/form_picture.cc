#include "tools/docs/internal/form_picture.h"

#include <algorithm>
#include <cstdio>

namespace weft::docs::internal {
namespace {

constexpr double kCell = 13, kGap = 18, kPadding = 14, kCardHeight = 122, kTop = 52;
constexpr int kCardsARow = 2;

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::string text_at(double x, double y, const char* classes, const std::string& text) {
  return std::string("<text class=\"") + classes + "\" x=\"" + number(x) + "\" y=\"" + number(y) +
         "\">" + text + "</text>\n";
}

std::string rect(const std::string& classes, double x, double y, double width, double height,
                 double round) {
  return "<rect class=\"" + classes + "\" x=\"" + number(x) + "\" y=\"" + number(y) +
         "\" width=\"" + number(width) + "\" height=\"" + number(height) + "\" rx=\"" +
         number(round) + "\"/>\n";
}

constexpr const char* kStyle =
    "<style>text{font-family:system-ui,'Segoe "
    "UI',Helvetica,Arial,sans-serif;font-size:12px}.title{font-size:19px;font-weight:600}"
    ".small{font-size:11px}"
    ".paper{fill:#ffffff}.card{fill:#f3f5f8;stroke:#c9d1db}.ink{fill:#1c2128}.dim{fill:#667080}."
    "none{fill:#ffffff;stroke:#dde3ea}"
    ".batch{fill:#3a8fc4;stroke:#2b739f}.weights{fill:#2f9e77;stroke:#247a5c}.gradients{fill:#"
    "d98a1f;stroke:#ab6c17}"
    ".state{fill:#a2619d;stroke:#7f4b7b}.fetched{fill-opacity:.25;stroke-dasharray:2 2}"
    "@media "
    "(prefers-color-scheme:dark){.paper{fill:#12161c}.card{fill:#1a2029;stroke:#39434f}.ink{fill:#"
    "e8ecf1}.dim{fill:#97a3b2}"
    ".none{fill:#12161c;stroke:#2c353f}}</style>\n";

// Draws the squares of the grid, and its title below.
std::string draw(const Grid& grid, double x, double y) {
  std::string text;
  for (int row = 0; row < grid.rows; ++row) {
    for (int column = 0; column < grid.columns; ++column) {
      const auto index = static_cast<std::size_t>(row) * static_cast<std::size_t>(grid.columns) +
                         static_cast<std::size_t>(column);
      const Cell cell = grid.cells[index];
      const std::string classes = cell == Cell::kNone   ? "none"
                                  : cell == Cell::kKept ? grid.title
                                                        : grid.title + " fetched";
      text += rect(classes, x + column * kCell, y + row * kCell, kCell - 2, kCell - 2, 2);
    }
  }
  return text + text_at(x, y + grid.rows * kCell + 14, "dim small", grid.title);
}

std::string place_of(const plan::MeshLayout& mesh, int rank) {
  std::string text;
  for (const plan::Axis& axis : mesh.axes())
    text += "  " + axis.name + " " + std::to_string(mesh.coordinate(rank, axis.name));
  return text;
}

double width_of(const std::vector<Grid>& grids) {
  double width = 2 * kPadding - kGap;
  for (const Grid& grid : grids) width += grid.columns * kCell + kGap;
  return width;
}

}  // namespace

std::string form_svg(const Form& form) {
  int world = 1;
  for (const plan::Axis& axis : form.mesh) world *= axis.size;
  const plan::MeshLayout mesh(world, form.mesh);
  const double card = width_of(grids_of(form, mesh, 0)), width = 16 + kCardsARow * (card + 14) + 2;
  std::string body;
  for (int rank = 0; rank < world; ++rank) {
    const int row = rank / kCardsARow;
    const double left = 16 + (rank % kCardsARow) * (card + 14),
                 top = kTop + row * (kCardHeight + 14);
    body += rect("card", left, top, card, kCardHeight, 7);
    body += text_at(left + kPadding, top + 24, "ink",
                    "<tspan font-weight=\"600\">rank " + std::to_string(rank) +
                        "</tspan><tspan class=\"dim\" xml:space=\"preserve\">" +
                        place_of(mesh, rank) + "</tspan>");
    double x = left + kPadding;
    for (const Grid& grid : grids_of(form, mesh, rank)) {
      body += draw(grid, x, top + 38);
      x += grid.columns * kCell + kGap;
    }
  }
  const int rows = (world + kCardsARow - 1) / kCardsARow;
  const std::string size =
      number(width) + "\" height=\"" + number(kTop + rows * (kCardHeight + 14) + 4) + "\"";
  std::string view = number(width) + " " + number(kTop + rows * (kCardHeight + 14) + 4);
  std::string text =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" aria-labelledby=\"t d\" viewBox=\"0 "
      "0 " +
      view + "\" width=\"" + size + ">\n<title id=\"t\">" + form.title +
      "</title>\n<desc id=\"d\">For each rank its part of the batch, of weights, "
      "gradients and optimizer state.</desc>\n";
  return text + kStyle + "<rect class=\"paper\" width=\"" + size + "/>\n" +
         text_at(16, 34, "ink title", form.title) + body + "</svg>\n";
}

}  // namespace weft::docs::internal
