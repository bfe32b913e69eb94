// What a dashboard may be, by Grafana's own types: the JSON file is checked as a constant of type Board.
import type { Dashboard, Panel, RowPanel } from '@grafana/schema';
import type {
  FieldConfig as Lines,
  Options as TimeSeries,
} from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';
import type { Options as Stat } from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type {
  FieldConfig as Cells,
  Options as Heatmap,
} from '@grafana/schema/dist/esm/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen';

// JSON spells a member of an enumeration as its text.
type Spelled<T> = T extends string ? `${T}` : T extends object ? { [K in keyof T]: Spelled<T[K]> } : T;
type Kind<Name extends string, Options, Custom> = Omit<Panel<Options, Custom>, 'type' | 'options'> & {
  type: Name;
  options: Options;
};
type Board = Omit<Dashboard, 'panels'> & {
  panels: Spelled<
    Kind<'timeseries', TimeSeries, Lines> | Kind<'stat', Stat, {}> | Kind<'heatmap', Heatmap, Cells> | RowPanel
  >[];
};
