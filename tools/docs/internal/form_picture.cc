#include "tools/docs/internal/form_picture.h"

#include "weft/base/svg/svg.h"

namespace weft::docs::internal {
namespace {

constexpr double kCell = 13, kGap = 18, kPadding = 14, kCardHeight = 122, kTop = 52;
constexpr int kCardsARow = 2;

void rect(Svg& svg, const std::string& classes, double x, double y, double width, double height,
          double round) {
  svg.element("rect", {{"class", classes},
                       {"x", x},
                       {"y", y},
                       {"width", width},
                       {"height", height},
                       {"rx", round}})
      .newline();
}

const char* theme_rules(const SvgTheme& theme) {
  return theme.dark
             ? ".paper{fill:#12161c}.card{fill:#1a2029;stroke:#39434f}.ink{fill:#e8ecf1}.dim{fill:"
               "#97a3b2}.none{fill:#12161c;stroke:#2c353f}"
             : ".paper{fill:#ffffff}.card{fill:#f3f5f8;stroke:#c9d1db}.ink{fill:#1c2128}.dim{fill:"
               "#667080}.none{fill:#ffffff;stroke:#dde3ea}.batch{fill:#3a8fc4;stroke:#2b739f}"
               ".weights{fill:#2f9e77;stroke:#247a5c}.gradients{fill:#d98a1f;stroke:#ab6c17}"
               ".state{fill:#a2619d;stroke:#7f4b7b}.fetched{fill-opacity:.25;stroke-dasharray:2 2}";
}

// Draws the squares of the grid, and its title below.
void draw(Svg& svg, const Grid& grid, double x, double y) {
  for (int row = 0; row < grid.rows; ++row) {
    for (int column = 0; column < grid.columns; ++column) {
      const auto index = static_cast<std::size_t>(row) * static_cast<std::size_t>(grid.columns) +
                         static_cast<std::size_t>(column);
      const Cell cell = grid.cells[index];
      const std::string classes = cell == Cell::kNone   ? "none"
                                  : cell == Cell::kKept ? grid.title
                                                        : grid.title + " fetched";
      rect(svg, classes, x + column * kCell, y + row * kCell, kCell - 2, kCell - 2, 2);
    }
  }
  svg.text_at(x, y + grid.rows * kCell + 14, "dim small", grid.title).newline();
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
  const int rows = (world + kCardsARow - 1) / kCardsARow;
  Svg svg("%.6g");
  svg.begin_page({.width = width,
                  .height = kTop + rows * (kCardHeight + 14) + 4,
                  .title = form.title,
                  .description = "For each rank its part of the batch, of weights, gradients and "
                                 "optimizer state.",
                  .style = {.text = "font-size:12px",
                            .rules = ".title{font-size:19px;font-weight:600}.small{font-size:11px}",
                            .colors = theme_rules}});
  svg.text_at(16, 34, "ink title", form.title).newline();
  for (int rank = 0; rank < world; ++rank) {
    const int row = rank / kCardsARow;
    const double left = 16 + (rank % kCardsARow) * (card + 14),
                 top = kTop + row * (kCardHeight + 14);
    rect(svg, "card", left, top, card, kCardHeight, 7);
    svg.begin("text", {{"class", "ink"}, {"x", left + kPadding}, {"y", top + 24}});
    svg.begin("tspan", {{"font-weight", "600"}}).content("rank " + std::to_string(rank));
    svg.end("tspan").begin("tspan", {{"class", "dim"}, {"xml:space", "preserve"}});
    svg.content(place_of(mesh, rank)).end("tspan").end("text").newline();
    double x = left + kPadding;
    for (const Grid& grid : grids_of(form, mesh, rank)) {
      draw(svg, grid, x, top + 38);
      x += grid.columns * kCell + kGap;
    }
  }
  return svg.end_page();
}

}  // namespace weft::docs::internal
